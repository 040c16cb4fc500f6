"""The verdict on an SEV-SNP report. A check without its certificate is skipped and required: nothing passes."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from cryptography.x509 import CertificateRevocationList as RevocationList

from cloister.attest.chain import key_fingerprint, subject
from cloister.attest.snp import certificate
from cloister.attest.snp import report as snp_report
from cloister.attest.snp.certificate import Chain, issued
from cloister.attest.snp.report import GuestPolicy, PlatformInfo, Product, Report, SnpPolicy, Tcb
from cloister.checks import Examination, Verdict

Roots = Mapping[Product, str]


def verify_snp(
    report: bytes,
    certificates: Sequence[bytes],
    *,
    at: datetime,
    policy: SnpPolicy,
    report_data: bytes | None,
    roots: Roots = snp_report.AMD_ROOTS,
) -> Verdict:
    """Certificates and revocation lists have any order. `report_data`: the client's 64 bytes; None skips the check."""
    read = snp_report.read_report(report)
    bundle = certificate.read_bundle(certificates)
    found = Examination()
    chain = certificate.find_chain(read, bundle.certificates, roots)
    _claim(found, read)
    product = _check_product(found, read, chain, policy)
    _check_chain(found, read, chain, product, at, roots)
    _check_revocation(found, chain, bundle.revocation_lists, at, policy)
    _check_signature(found, read, chain, policy)
    _check_leaf(found, read, chain, product, policy)
    check_demands(found, read, product, policy)
    found.compare("report data", read.report_data, report_data, "the report was made for another nonce or key")
    return found.verdict()


def _check_product(found: Examination, report: Report, chain: Chain, policy: SnpPolicy) -> Product | None:
    """Report (since version 3) and certificate may both name the chip; they must not disagree."""
    certified = certificate.product_in(chain.leaf) if chain.leaf else None
    product = report.product if report.has_cpuid else certified
    if report.has_cpuid and product is None:
        family, model, _ = report.cpuid
        found.failed("product", f"no root is known for CPUID family {family:#x}, model {model:#x}")
    elif chain.leaf and certified != product:
        found.failed("product", f"the report is of a {product}, its certificate of {certified or 'no known product'}")
    elif chain.leaf and product is None:
        found.failed("product", "the certificate does not say for which chip it is")
    elif product is None:
        found.skipped("product", "a report of version 2 does not say; its certificate would")
    else:
        found.check("product", product in policy.products, f"{product} is not accepted", product)
        found.claim(product=product)
    return product


def _check_chain(
    found: Examination, report: Report, chain: Chain, product: Product | None, at: datetime, roots: Roots
) -> None:
    leaf, intermediate, root = chain.leaf, chain.intermediate, chain.root
    if root:
        pinned = product is not None and key_fingerprint(root) == roots.get(product)
        found.check("root key", pinned, f"not the key of AMD's root for {product}", subject(root))
    else:
        found.skipped("root key", f"no {'ARK' if intermediate else 'ASK or ASVK, and so no ARK'} was given")
    at_hand = [one for one in (leaf, intermediate, root) if one]
    names = [subject(one) for one in at_hand]
    kind = report.signing_key.upper()
    if not leaf:
        found.skipped("certificate chain", f"no {kind} certificate was given")
    elif not intermediate:
        found.skipped("certificate chain", "the certificate of the leaf's issuer was not given")
    elif not root:
        found.skipped("certificate chain", "the root's certificate was not given")
    elif not issued(leaf, by=intermediate):
        found.failed("certificate chain", f"{names[0]} is not signed by the {names[1]} given")
    elif not issued(intermediate, by=root):
        found.failed("certificate chain", f"{names[1]} is not signed by the {names[2]} given")
    elif not issued(root, by=root):
        found.failed("certificate chain", f"{names[2]} is not signed by itself")
    elif product is None or names[1] != certificate.authority_name(report, product):
        found.failed("certificate chain", f"{names[1]} does not sign for a {kind} of {product}")
    else:
        found.passed("certificate chain", " → ".join(names))
    if not at_hand:
        found.skipped("certificate validity", "no certificate was given")
        return
    late = [subject(one) for one in at_hand if not one.not_valid_before_utc <= at <= one.not_valid_after_utc]
    until = min(one.not_valid_after_utc for one in at_hand).date()
    found.check("certificate validity", not late, f"not valid at {at:%Y-%m-%d}: {', '.join(late)}", f"to {until}")


def _check_revocation(
    found: Examination, chain: Chain, lists: Sequence[RevocationList], at: datetime, policy: SnpPolicy
) -> None:
    ours = [one for one in lists if chain.root and one.issuer == chain.root.subject]
    if not ours or not chain.root:
        reason = "the revocation list given is of another root" if lists else "no revocation list of AMD's was given"
        if policy.allow_missing_revocation_list:
            found.check("revocation", False, reason, allowed_by="allow_missing_revocation_list")
        else:
            found.skipped("revocation", reason)
        return
    revoked = [
        subject(one)
        for one in (chain.intermediate, chain.root)
        if one and any(each.get_revoked_certificate_by_serial_number(one.serial_number) for each in ours)
    ]
    if not all(certificate.revocations_issued(one, by=chain.root) for one in ours):
        found.failed("revocation", "the revocation list is not signed by the root")
    elif revoked:
        found.failed("revocation", f"revoked: {', '.join(revoked)}")
    elif not all(one.last_update_utc <= at <= (one.next_update_utc or at) for one in ours):
        found.failed("revocation", f"the revocation list is not current at {at:%Y-%m-%d}")
    else:
        found.passed("revocation", f"list of {max(one.last_update_utc for one in ours):%Y-%m-%d}")


def _check_signature(found: Examination, report: Report, chain: Chain, policy: SnpPolicy) -> None:
    key = report.signing_key
    if key not in ("vcek", "vlek"):
        found.failed("signing key", "the report is not signed" if key == "none" else "signed by an unknown key")
    else:
        found.check("signing key", key in policy.signing_keys, f"a {key.upper()} is not accepted", key.upper())
    if report.signature_algorithm != snp_report.ECDSA_P384_SHA384:
        found.failed("report signature", f"algorithm {report.signature_algorithm} is not known")
    elif not chain.leaf:
        found.skipped("report signature", f"no {key.upper()} certificate was given")
    else:
        reason = f"not made by the key of the {subject(chain.leaf)} given: report altered, or certificate swapped"
        found.check("report signature", certificate.signed_by(report, chain.leaf), reason)


def _check_leaf(found: Examination, report: Report, chain: Chain, product: Product | None, policy: SnpPolicy) -> None:
    """The key was derived for one set of patch levels and, if a VCEK, for one chip: the report must name the same."""
    leaf = chain.leaf
    if not leaf or not product:
        reason = "no certificate was given" if not leaf else "the product is not known"
        found.skipped("certificate TCB", reason)
        found.skipped("chip id", reason)
        return
    certified, reported = certificate.tcb_in(leaf, product), Tcb.unpack(report.reported_tcb, product)
    reason = f"certificate: {certified or 'incomplete'}; report: {reported}"
    found.check("certificate TCB", certified == reported, reason, str(reported))
    if report.signing_key == "vlek":
        provider = certificate.provider_in(leaf)
        found.claim(csp_id=provider)
        found.skipped("chip id", "a VLEK speaks for a provider, not for a chip", required=False)
        if policy.csp_ids is not None:
            found.check("provider", provider in policy.csp_ids, f"{provider!r} is not accepted", provider)
        return
    chip = certificate.chip_in(leaf)
    if policy.allow_hidden_chip_id and not any(report.chip_id):
        found.check("chip id", False, "the host hides it", allowed_by="allow_hidden_chip_id")
    else:
        same = chip is not None and report.chip_id == chip.ljust(len(report.chip_id), b"\0")
        found.check("chip id", same, "the certificate is another chip's", report.chip_id.rstrip(b"\0").hex()[:16])


_IDS = ("host_data", "family_id", "image_id", "id_key_digest", "author_key_digest", "chip_id")


def _claim(found: Examination, report: Report) -> None:
    found.claim(tee="sev-snp", version=report.version, guest_svn=report.guest_svn, vmpl=report.vmpl)
    found.claim(guest_policy=f"{report.policy:#x}", platform_info=f"{report.platform_info:#x}")
    found.claim(**{name: getattr(report, name).hex() for name in ("measurement", "report_data", *_IDS)})
    firmware = ".".join(map(str, reversed(report.current_firmware)))
    found.claim(signing_key=report.signing_key, firmware=firmware)


_HOST = 0xFFFFFFFF  # the VMPL of a report that the host asked for, not the guest


def check_demands(found: Examination, report: Report, product: Product | None, policy: SnpPolicy) -> None:
    _check_settings(found, report, policy)
    _check_tcb(found, report, product, policy)
    _check_values(found, report, policy)
    level = "the host" if report.vmpl == _HOST else f"VMPL {report.vmpl}"
    relaxed = f"vmpl {report.vmpl}" if report.vmpl and report.vmpl in policy.vmpl else ""
    reason = f"asked for by {level}, not by VMPL 0, which was measured at launch"
    found.check("vmpl", report.vmpl in policy.vmpl and not relaxed, reason, level, allowed_by=relaxed)
    if policy.minimum_guest_svn:
        enough = report.guest_svn >= policy.minimum_guest_svn
        found.check("guest svn", enough, f"{report.guest_svn} < {policy.minimum_guest_svn}")


def _check_settings(found: Examination, report: Report, policy: SnpPolicy) -> None:
    guest, platform = GuestPolicy(report.policy), PlatformInfo(report.platform_info)
    meant = GuestPolicy.ALWAYS in guest and not guest & GuestPolicy.WITHOUT_MEANING
    found.check("guest policy", meant, f"{report.policy:#x} has bits set or clear that have no meaning")
    why = "the host may read the guest's memory: debugging is on"
    found.check("debug", GuestPolicy.DEBUG not in guest, why, allowed_by="allow_debug" if policy.allow_debug else "")
    why = "the guest may be moved by an agent whose own report this is not"
    allowed = "allow_migration_agent" if policy.allow_migration_agent else ""
    found.check("migration agent", GuestPolicy.MIGRATION_AGENT not in guest, why, allowed_by=allowed)
    alone = not (GuestPolicy.SMT in guest or PlatformInfo.SMT in platform)
    one_socket = GuestPolicy.SINGLE_SOCKET in guest
    hidden, searched = PlatformInfo.CIPHERTEXT_HIDING in platform, PlatformInfo.ALIAS_CHECK_COMPLETE in platform
    committed = report.current_firmware == report.committed_firmware and report.current_tcb == report.committed_tcb
    for name, asked, holds, reason in (
        ("smt", policy.require_smt_off, alone, "another thread may share the guest's cores"),
        ("single socket", policy.require_single_socket, one_socket, "the guest may run on several sockets"),
        ("ciphertext hiding", policy.require_ciphertext_hiding, hidden, "the host may read the memory's ciphertext"),
        ("alias check", policy.require_alias_check, searched, "the firmware did not look for aliased memory"),
        ("committed firmware", policy.require_committed_firmware, committed, "the firmware may still be rolled back"),
    ):
        if asked:
            found.check(name, holds, reason)


def _check_tcb(found: Examination, report: Report, product: Product | None, policy: SnpPolicy) -> None:
    """The policy's own floors, then those that ship with the release, which alone can be relaxed."""
    if product is None:
        found.skipped("tcb floor", "the product is not known, and so not the TCB's layout")
        return
    reported = Tcb.unpack(report.reported_tcb, product)
    floors = (policy.minimum_tcb, policy.minimum_tcb_of.get(product, Tcb()))
    old = [each for floor in floors for each in reported.below(floor)]
    if reported == Tcb():
        found.failed("tcb floor", "every patch level is 0: no firmware that AMD released has such a TCB")
    elif any(floor != Tcb() for floor in floors):
        found.check("tcb floor", not old, ", ".join(dict.fromkeys(old)), str(reported))
    else:
        found.skipped("tcb floor", "the policy names none", required=False)
    vulnerable = reported.below(snp_report.shipped_floor(report, product))
    reason = f"{', '.join(vulnerable)}: {product} was known to be vulnerable there by {snp_report.FLOORS_DATE}"
    allowed = "allow_old_tcb" if policy.allow_old_tcb else ""
    found.check("shipped tcb floor", not vulnerable, reason, f"of {snp_report.FLOORS_DATE}", allowed_by=allowed)


def _check_values(found: Examination, report: Report, policy: SnpPolicy) -> None:
    if not policy.measurements:
        found.skipped("launch", "the policy names no [snp] measurements: any guest on a real chip could be this one")
    else:
        found.listed("launch", report.measurement.hex(), policy.measurements, "snp.measurements")
    for name, value, where in (
        ("host data", report.host_data, "host_data"),
        ("family id", report.family_id, "family_ids"),
        ("image id", report.image_id, "image_ids"),
        ("id key", report.id_key_digest, "id_key_digests"),
        ("author key", report.author_key_digest, "author_key_digests"),
        ("accepted chip", report.chip_id, "chip_ids"),
    ):
        accepted: Sequence[str] | None = getattr(policy, where)
        if accepted is not None:
            found.listed(name, value.hex(), accepted, f"snp.{where}")
