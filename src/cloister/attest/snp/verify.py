"""The verdict on an SEV-SNP report: one named check for each thing that could be wrong with it.

All inputs are arguments: no clock, no network, no file. A check that needs a certificate nobody gave is skipped and
required, so the verdict is incomplete, never passed. (Petridish §4.1: the CPU's report carries everything else.)
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from datetime import datetime

from cloister.attest.snp.certificate import (
    Certificate,
    Chain,
    RevocationList,
    authority_name,
    chip_in,
    find_chain,
    product_in,
    provider_in,
    read_bundle,
    signed_by,
    tcb_in,
)
from cloister.attest.snp.report import AMD_ROOTS, ECDSA_P384_SHA384, Product, Report, SnpPolicy, Tcb, read_report
from cloister.checks import Examination, Verdict


def verify_snp(
    report: bytes,
    certificates: Sequence[bytes],
    *,
    at: datetime,
    policy: SnpPolicy,
    report_data: bytes | None,
    roots: Mapping[Product, str] = AMD_ROOTS,
) -> Verdict:
    """Check a report against certificates (PEM, DER or a host's table, in any order; revocation lists among them).

    `report_data` is what the 64 bytes of the asker's must be; None if nobody asked. EvidenceInvalid if the report or a
    certificate is malformed.
    """
    read = read_report(report)
    bundle = read_bundle(certificates)
    examination = Examination()
    chain = find_chain(read, bundle.certificates, roots)
    _claim(examination, read)
    product = _check_product(examination, read, chain, policy)
    _check_chain(examination, read, chain, product, at, roots)
    _check_revocation(examination, chain, bundle.revocation_lists, at, policy)
    _check_signature(examination, read, chain, policy)
    _check_leaf_fits(examination, read, chain, product, policy)
    check_demands(examination, read, product, policy)
    if report_data is None:
        examination.skipped("report data", "no nonce was given", required=False)
    else:
        examination.check(
            "report data",
            hmac.compare_digest(read.report_data, report_data),
            "the report was made for another nonce or key",
        )
    return examination.verdict()


def _check_product(examination: Examination, report: Report, chain: Chain, policy: SnpPolicy) -> Product | None:
    """The chip as the report names it (since version 3) and as the certificate does; they must not disagree."""
    certified = product_in(chain.leaf) if chain.leaf else None
    product = report.product if report.cpuid else certified
    if report.cpuid and product is None:
        family, model, _ = report.cpuid
        examination.failed("product", f"no root is known for CPUID family {family:#x}, model {model:#x}")
    elif chain.leaf and certified != product:
        examination.failed("product", f"the report is of a {product}, its certificate of a {certified or 'stranger'}")
    elif chain.leaf and product is None:
        examination.failed("product", "the certificate does not say for which chip it is")
    elif product is None:
        examination.skipped("product", "a report of version 2 does not say; its certificate would")
    else:
        examination.check("product", product in policy.products, f"{product} is not accepted", product)
        examination.claim("product", product)
    return product


def _check_chain(
    examination: Examination,
    report: Report,
    chain: Chain,
    product: Product | None,
    at: datetime,
    roots: Mapping[Product, str],
) -> None:
    leaf, intermediate, root = chain.leaf, chain.intermediate, chain.root
    if root:
        pinned = product is not None and root.fingerprint == roots.get(product)
        examination.check("root key", pinned, f"not the key of AMD's root for {product}", root.common_name)
    else:
        examination.skipped("root key", f"no {'ARK' if intermediate else 'ASK or ASVK, and so no ARK'} was given")
    if not leaf:
        examination.skipped("certificate chain", f"no {report.signing_key.upper()} certificate was given")
    elif not intermediate:
        examination.skipped("certificate chain", "the certificate of the leaf's issuer was not given")
    elif not root:
        examination.skipped("certificate chain", "the root's certificate was not given")
    else:
        examination.check("certificate chain", *_unbroken(leaf, intermediate, root, product, report))
    found = [one for one in (leaf, intermediate, root) if one]
    if not found:
        examination.skipped("certificate validity", "no certificate was given")
        return
    late = [one.common_name for one in found if not one.valid(at)]
    until = min(one.not_after for one in found).date()
    examination.check("certificate validity", not late, f"not valid at {at:%Y-%m-%d}: {', '.join(late)}", f"to {until}")


def _unbroken(
    leaf: Certificate, intermediate: Certificate, root: Certificate, product: Product | None, report: Report
) -> tuple[bool, str, str]:
    """Whether each is signed by the next, why not, and the way up."""
    way = " → ".join(one.common_name for one in (leaf, intermediate, root))
    if not leaf.issued_by(intermediate):
        return False, f"{leaf.common_name} is not signed by the {intermediate.common_name} given", way
    if not intermediate.issued_by(root):
        return False, f"{intermediate.common_name} is not signed by the {root.common_name} given", way
    if not root.issued_by(root):
        return False, f"{root.common_name} is not signed by itself", way
    if product is None or intermediate.common_name != authority_name(report, product):
        return False, f"{intermediate.common_name} does not sign for a {report.signing_key.upper()} of {product}", way
    return True, "", way


def _check_revocation(
    examination: Examination, chain: Chain, lists: Sequence[RevocationList], at: datetime, policy: SnpPolicy
) -> None:
    ours = [one for one in lists if chain.root and one.issuer == chain.root.subject]
    if not ours or not chain.root:
        reason = "the revocation list given is of another root" if lists else "no revocation list was given"
        examination.skipped("revocation", reason, required=policy.require_revocation_list)
        return
    revoked = [one.common_name for one in (chain.intermediate, chain.root) if one and _in_any(one, ours)]
    if not all(one.issued_by(chain.root) for one in ours):
        examination.failed("revocation", "the revocation list is not signed by the root")
    elif revoked:
        examination.failed("revocation", f"revoked: {', '.join(revoked)}")
    elif not all(one.current(at) for one in ours):
        examination.failed("revocation", f"the revocation list is not current at {at:%Y-%m-%d}")
    else:
        examination.passed("revocation", f"list of {max(one.made for one in ours):%Y-%m-%d}")


def _in_any(one: Certificate, lists: Sequence[RevocationList]) -> bool:
    return any(one.serial in each.serials for each in lists)


def _check_signature(examination: Examination, report: Report, chain: Chain, policy: SnpPolicy) -> None:
    key = report.signing_key
    if key not in ("vcek", "vlek"):
        examination.failed("signing key", "the report is not signed" if key == "none" else "signed by an unknown key")
    else:
        examination.check("signing key", key in policy.signing_keys, f"a {key.upper()} is not accepted", key.upper())
    if report.signature_algorithm != ECDSA_P384_SHA384:
        examination.failed("report signature", f"algorithm {report.signature_algorithm} is not known")
    elif not chain.leaf:
        examination.skipped("report signature", f"no {key.upper()} certificate was given")
    else:
        examination.check(
            "report signature",
            signed_by(report, chain.leaf),
            f"not made by the key of the {chain.leaf.common_name} given: report altered, or certificate swapped",
        )


def _check_leaf_fits(
    examination: Examination, report: Report, chain: Chain, product: Product | None, policy: SnpPolicy
) -> None:
    """The key was derived for one set of patch levels and, a VCEK, for one chip: the report must name the same."""
    leaf = chain.leaf
    if not leaf or not product:
        reason = "no certificate was given" if not leaf else "the product is not known"
        examination.skipped("certificate TCB", reason)
        examination.skipped("chip id", reason)
        return
    certified, reported = tcb_in(leaf, product), Tcb.unpack(report.reported_tcb, product)
    reason = f"certificate: {certified or 'incomplete'}; report: {reported}"
    examination.check("certificate TCB", certified == reported, reason, str(reported))
    if report.signing_key == "vlek":
        provider = provider_in(leaf)
        examination.claim("csp_id", provider)
        examination.skipped("chip id", "a VLEK speaks for a provider, not for a chip", required=False)
        if policy.csp_ids:
            examination.check("provider", provider in policy.csp_ids, f"{provider!r} is not accepted", provider)
        return
    chip = chip_in(leaf)
    if policy.allow_hidden_chip_id and not any(report.chip_id):
        examination.skipped("chip id", "the host hides it, and the policy allows that", required=False)
    else:
        same = chip is not None and report.chip_id == chip.ljust(len(report.chip_id), b"\0")
        examination.check("chip id", same, "the certificate is another chip's", report.chip_id.rstrip(b"\0").hex()[:16])


_CLAIMED_BYTES = (
    *("measurement", "report_data", "host_data", "family_id", "image_id"),
    *("id_key_digest", "author_key_digest", "chip_id"),
)


def _claim(examination: Examination, report: Report) -> None:
    for name, value in {
        "tee": "sev-snp",
        "version": report.version,
        "guest_svn": report.guest_svn,
        "vmpl": report.vmpl,
        "guest_policy": f"{report.policy.bits:#x}",
        "platform_info": f"{report.platform_info:#x}",
        "signing_key": report.signing_key,
        **{name: getattr(report, name).hex() for name in _CLAIMED_BYTES},
        "firmware": ".".join(map(str, report.current_firmware)),
    }.items():
        examination.claim(name, value)


_HOST = 0xFFFFFFFF  # the VMPL of a report that the host asked for, not the guest


def check_demands(examination: Examination, report: Report, product: Product | None, policy: SnpPolicy) -> None:
    """Add one check for each demand."""
    _check_guest_policy(examination, report, policy)
    _check_platform(examination, report, policy)
    _check_tcb(examination, report, product, policy)
    _check_values(examination, report, policy)
    level = "the host" if report.vmpl == _HOST else f"VMPL {report.vmpl}"
    examination.check("vmpl", report.vmpl in policy.vmpl, f"asked for by {level}, which is not accepted", level)
    if policy.minimum_guest_svn:
        enough = report.guest_svn >= policy.minimum_guest_svn
        examination.check("guest svn", enough, f"{report.guest_svn} < {policy.minimum_guest_svn}")


def _check_guest_policy(examination: Examination, report: Report, policy: SnpPolicy) -> None:
    guest = report.policy
    examination.check("guest policy", guest.known, f"{guest.bits:#x} has bits set or clear that have no meaning")
    examination.check(
        "debug", policy.allow_debug or not guest.debug, "the host may read the guest's memory: debugging is on"
    )
    examination.check(
        "migration agent",
        policy.allow_migration_agent or not guest.migration_agent,
        "the guest may be moved by an agent whose own report this is not",
    )
    smt = guest.smt or report.smt_enabled
    examination.check("smt", policy.allow_smt or not smt, "another thread may share the guest's cores")
    if policy.require_single_socket:
        examination.check("single socket", guest.single_socket, "the guest may run on several sockets")


def _check_platform(examination: Examination, report: Report, policy: SnpPolicy) -> None:
    if policy.require_ciphertext_hiding:
        examination.check("ciphertext hiding", report.ciphertext_hiding, "the host may read the memory's ciphertext")
    if policy.require_alias_check:
        examination.check("alias check", report.alias_check_complete, "the firmware did not look for aliased memory")
    if policy.require_committed_firmware:
        committed = report.current_firmware == report.committed_firmware and report.current_tcb == report.committed_tcb
        examination.check("committed firmware", committed, "the firmware may still be rolled back")


def _check_tcb(examination: Examination, report: Report, product: Product | None, policy: SnpPolicy) -> None:
    floors = [policy.minimum_tcb]
    if product in policy.minimum_tcb_of:
        floors.append(policy.minimum_tcb_of[product])
    elif product is None:
        floors += policy.minimum_tcb_of.values()
    if all(floor == Tcb() for floor in floors):
        examination.skipped("tcb floor", "the policy has none", required=False)
        return
    if product is None:
        examination.skipped("tcb floor", "the product is not known, and so not the TCB's layout")
        return
    reported = Tcb.unpack(report.reported_tcb, product)
    old = [each for floor in floors for each in reported.below(floor)]
    examination.check("tcb floor", not old, ", ".join(dict.fromkeys(old)), str(reported))


def _check_values(examination: Examination, report: Report, policy: SnpPolicy) -> None:
    for name, value, accepted in (
        ("measurement", report.measurement, policy.measurements),
        ("host data", report.host_data, policy.host_data),
        ("family id", report.family_id, policy.family_ids),
        ("image id", report.image_id, policy.image_ids),
        ("id key", report.id_key_digest, policy.id_key_digests),
        ("author key", report.author_key_digest, policy.author_key_digests),
        ("accepted chip", report.chip_id, policy.chip_ids),
    ):
        if accepted:
            known = value.hex() in [each.lower() for each in accepted]
            examination.check(name, known, f"{value.hex()} is not accepted", value.hex())
        elif name == "measurement":
            examination.skipped(name, "the policy names none: any guest on a real chip passes", required=False)
