"""Whether a TDX quote proves a policy. dcap-qvl judges Intel's collateral (PCS API v4); without it nothing passes."""

import hashlib
import hmac
import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import dcap_qvl  # type: ignore[import-untyped]
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from cloister.attest.chain import ecdsa_signed, find_chain, read_certificates
from cloister.attest.tdx.quote import ANY, Quote, TdReport, TdxPolicy, read_quote
from cloister.checks import Examination, Verdict
from cloister.errors import EvidenceInvalid

_WORSE: Final = (
    *("UpToDate", "SWHardeningNeeded", "ConfigurationNeeded", "ConfigurationAndSWHardeningNeeded"),
    *("OutOfDate", "OutOfDateConfigurationNeeded", "Revoked"),
)


def read_levels(data: bytes, quote: Quote, collateral: bytes) -> tuple[str, tuple[str, ...], int]:
    """Status, advisories and evaluation number. ValueError, LookupError or TypeError where collateral does not say."""
    document = json.loads(collateral)
    tcb_info, enclave = json.loads(document["tcb_info"]), json.loads(document["qe_identity"])
    svn, enclave_svn = quote.report.tee_tcb_svn, int.from_bytes(quote.qe.signed[258:260], "little")
    levels = [_platform_level(tcb_info, data, svn), _module_level(tcb_info, svn)]
    levels.append(_reached(enclave["tcbLevels"], enclave_svn))
    found = [level for level in levels if level is not None]
    status = max((str(level["tcbStatus"]) for level in found), key=_WORSE.index)
    advisories = dict.fromkeys(str(each) for level in found for each in level.get("advisoryIDs", ()))
    numbers = (int(one["tcbEvaluationDataNumber"]) for one in (tcb_info, enclave))
    return status, tuple(advisories), min(numbers)


def _platform_level(tcb_info: dict[str, Any], data: bytes, tee_tcb_svn: bytes) -> dict[str, Any]:
    platform = dcap_qvl.Quote.parse(data).pck_extension()
    if platform is None:
        raise ValueError("the quote does not carry its PCK certificate")
    have = (*platform.cpu_svn, platform.pce_svn, *tee_tcb_svn)
    for level in sorted(tcb_info["tcbLevels"], key=_numbers, reverse=True):
        if all(ours >= theirs for ours, theirs in zip(have, _numbers(level), strict=True)):
            return dict(level)
    raise ValueError("no level is reached")


def _numbers(level: dict[str, Any]) -> tuple[int, ...]:
    tcb = level["tcb"]
    sgx, tdx = ([int(one["svn"]) for one in tcb[f"{kind}tcbcomponents"]] for kind in ("sgx", "tdx"))
    return (*sgx, int(tcb["pcesvn"]), *tdx)


def _module_level(tcb_info: dict[str, Any], tee_tcb_svn: bytes) -> dict[str, Any] | None:
    """Modules of version 0 have no identity."""
    identities = tcb_info.get("tdxModuleIdentities") or ()
    if not tee_tcb_svn[1] or not identities:
        return None
    name = f"TDX_{tee_tcb_svn[1]:02X}"
    (identity,) = (one for one in identities if str(one["id"]).upper() == name)
    return _reached(identity["tcbLevels"], tee_tcb_svn[0])


def _reached(levels: list[dict[str, Any]], svn: int) -> dict[str, Any]:
    return max((one for one in levels if one["tcb"]["isvsvn"] <= svn), key=lambda one: int(one["tcb"]["isvsvn"]))


MAX_COLLATERAL_BYTES = 262144
MAX_REASON = 200
NO_LEVEL = "No matching TCB level"
EXPOSED = "SEPT_VE_DISABLE is not enabled"  # dcap-qvl checks this last: it reports any other problem instead.


class CollateralRefused(Exception):
    """dcap-qvl's reason why quote and collateral do not fit together at that time."""


@dataclass(frozen=True)
class Standing:
    status: str
    advisories: tuple[str, ...]
    evaluation: int
    report: dict[str, Any]

    def agrees_with(self, report: TdReport) -> bool:
        names = {"mr_td": "mrtd", "report_data": "report_data", **{f"rt_mr{at}": f"rtmr{at}" for at in range(4)}}
        same = all(self.report.get(theirs) == getattr(report, ours).hex() for theirs, ours in names.items())
        return same and self.report.get("td_attributes") == report.td_attributes.to_bytes(8, "little").hex()


def read_collateral(data: bytes) -> dcap_qvl.QuoteCollateralV3:
    if len(data) > MAX_COLLATERAL_BYTES:
        raise EvidenceInvalid(f"Collateral may have at most {MAX_COLLATERAL_BYTES} bytes.")
    try:
        return dcap_qvl.QuoteCollateralV3.from_json(data.decode())
    except ValueError as wrong:
        message = f"The collateral is not the JSON dcap-qvl writes ({type(wrong).__name__})."
        raise EvidenceInvalid(message, hint="Fetch it with dcap_qvl.get_collateral and store its to_json().") from None


def pck_chain(data: bytes) -> bytes:
    """The PCK certificate chain (PEM) that collateral may carry for a quote without one."""
    chain = json.loads(read_collateral(data).to_json()).get("pck_certificate_chain")
    return chain.encode() if isinstance(chain, str) else b""


def judge(quote: bytes, collateral: dcap_qvl.QuoteCollateralV3, root: bytes, seconds: int) -> Standing:
    try:
        verifier = dcap_qvl.QuoteVerifier(root)
        policy = dcap_qvl.QuotePolicy.claims_only(seconds)
        claims = json.loads(verifier.verify_with_policy(quote, collateral, seconds, policy).to_json())
        ((_, report),) = claims["report"].items()
        tcb = claims["tcb"]
        while "base" in report:  # a newer report holds the older one
            report |= report.pop("base")
        return Standing(tcb["status"], tuple(tcb["advisory_ids"]), tcb["eval_data_number"], report)
    except Exception as wrong:
        raise CollateralRefused(str(wrong)) from None
    except BaseException as wrong:
        # A panic of the Rust library is no Exception; it must not pass, and must not end the program either.
        if type(wrong).__name__ != "PanicException":
            raise
        raise CollateralRefused("dcap-qvl could not cope with this collateral") from None


def read_standing(data: bytes, collateral: bytes) -> Standing | None:
    """The same for a quote that dcap-qvl refused for SEPT_VE_DISABLE alone; None if the collateral does not say."""
    try:
        return Standing(*read_levels(data, read_quote(data), collateral), {})
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


INTEL_ROOTS = frozenset({"a0af031289f5d5d4132f9186068a7fc13628633ba235777472e29b6b6c67a49e"})
"""The key of `Intel SGX Root CA`."""
INTEL_QE_VENDOR = bytes.fromhex("939a7233f79c4ca9940a0db3957f0607")
SGX_EXTENSION = x509.ObjectIdentifier("1.2.840.113741.1.13.1")  # in PCK certificates alone; Intel's root issues others


def verify_tdx(
    quote: bytes,
    collateral: bytes | None,
    *,
    at: datetime,
    policy: TdxPolicy,
    report_data: bytes | None,
    roots: frozenset[str] = INTEL_ROOTS,
) -> Verdict:
    read = read_quote(quote)
    found = Examination()
    _claim(read, found)
    _examine_signatures(read, found)
    chain = _examine_chain(read, collateral, roots, at, found)
    _examine_model(chain, policy, found)
    _examine_standing(quote, read.report, collateral, chain, at, policy, found)
    _examine_attributes(read.report, policy, found)
    _examine_module(read.report, policy, found)
    _examine_launch(read.report, policy, found)
    reason = "the report speaks for another nonce, channel key, release or GPU"
    found.compare("report data", read.report.report_data, report_data, reason)
    return found.verdict()


def _claim(quote: Quote, found: Examination) -> None:
    report = quote.report
    found.claim(tee="tdx", quote_version=quote.version, td_version=report.version)
    modules = ("mrseam", "mrsignerseam", "mrservicetd", "tee_tcb_svn", "seam_attributes", "report_data")
    owners = ("mrtd", "mrconfigid", "mrowner", "mrownerconfig", "rtmr0", "rtmr1", "rtmr2", "rtmr3")
    found.claim(**{name: getattr(report, name).hex() for name in (*owners, *modules)})
    found.claim(td_attributes=f"{report.td_attributes:016x}", xfam=_number(report.xfam))


def _examine_signatures(quote: Quote, found: Examination) -> None:
    found.check("qe vendor", quote.qe_vendor == INTEL_QE_VENDOR, "the quoting enclave is not Intel's")
    try:
        key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), b"\x04" + quote.attestation_key)
    except ValueError:
        found.failed("quote signature", "the attestation key is no point of P-256")
        return
    holds = _signed(key, quote.signature, quote.signed)
    found.check("quote signature", holds, "the quote is not signed by its attestation key")
    bound = hashlib.sha256(quote.attestation_key + quote.qe.auth_data).digest() + bytes(32)
    holds = hmac.compare_digest(bound, quote.qe.report_data)
    found.check("attestation key", holds, "the quoting enclave's report does not speak for this attestation key")


def _examine_chain(
    quote: Quote, collateral: bytes | None, roots: frozenset[str], at: datetime, found: Examination
) -> tuple[x509.Certificate, ...] | None:
    pem = quote.pck_chain or (pck_chain(collateral) if collateral is not None else b"")
    if not pem:
        found.skipped("certificate chain", "neither quote nor collateral carries the PCK certificate chain")
        found.skipped("qe report signature", "the PCK certificate is not known")
        return None
    chain = find_chain(read_certificates(pem), roots, at, found)
    if chain is None:
        found.skipped("qe report signature", "the PCK certificate is not to be trusted")
        return None
    leaf = chain[0]
    key = leaf.public_key()
    is_pck = any(extension.oid == SGX_EXTENSION for extension in leaf.extensions)
    found.check("pck certificate", is_pck, "the leaf certificate is not of an SGX or TDX platform")
    holds = _signed(key, quote.qe.signature, quote.qe.signed)
    found.check("qe report signature", holds, "the quoting enclave's report is not signed by the platform's PCK")
    return chain


def _examine_model(chain: tuple[x509.Certificate, ...] | None, policy: TdxPolicy, found: Examination) -> None:
    fmspc = ""
    if chain:
        with suppress(Exception):  # a certificate without the extension fails the check `pck certificate`
            fmspc = bytes(dcap_qvl.parse_pck_extension_from_pem(chain[0].public_bytes(Encoding.PEM)).fmspc).hex()
    found.claim(fmspc=fmspc)
    if policy.fmspcs is None:
        return
    if not chain:
        found.skipped("fmspc", "the PCK certificate is not known, or not to be trusted")
    else:
        found.listed("fmspc", fmspc, policy.fmspcs, "tdx.fmspcs")


def _examine_standing(
    quote: bytes,
    report: TdReport,
    collateral: bytes | None,
    chain: tuple[x509.Certificate, ...] | None,
    at: datetime,
    policy: TdxPolicy,
    found: Examination,
) -> None:
    if collateral is None:
        found.skipped("collateral", "no collateral was given: TCB, quoting enclave and revocation are unknown")
        found.skipped("tcb status", "no collateral was given")
        return
    word = read_collateral(collateral)
    if chain is None:
        found.skipped("collateral", "there is no trusted root to judge it by")
        found.skipped("tcb status", "there is no trusted root to judge the collateral by")
        return
    try:
        standing = judge(quote, word, chain[-1].public_bytes(Encoding.DER), int(at.timestamp()))
        found.check("collateral", standing.agrees_with(report), "dcap-qvl reads another report out of this quote")
    except CollateralRefused as refused:
        standing = None
        if policy.allow_sept_ve and str(refused).removeprefix("Verification failed: ") == EXPOSED:
            standing = read_standing(quote, collateral)
        if standing is not None:
            found.passed("collateral", "read past SEPT_VE_DISABLE, as the policy allows")
        elif NO_LEVEL in str(refused):
            found.skipped("collateral", "not judged to its end: the platform matches no level of it")
            found.failed("tcb status", "older than every TCB level Intel lists for this platform (below OutOfDate)")
        else:
            found.failed("collateral", _shown(str(refused).removeprefix("Verification failed: ")))
            found.skipped("tcb status", "the collateral was refused")
    if standing is None:
        return
    found.claim(tcb_status=standing.status, advisories=list(standing.advisories), tcb_evaluation=standing.evaluation)
    status, known = standing.status, standing.status in policy.accepted_statuses
    relaxed = known and status != "UpToDate"
    reason = status if relaxed else f"{status}; the policy accepts {', '.join(policy.accepted_statuses)}"
    allowed = f"accepted_statuses {status}" if relaxed else ""
    found.check("tcb status", known and not relaxed, reason, status, allowed_by=allowed)
    accepted = standing.advisories if policy.accepted_advisories is None else policy.accepted_advisories
    refused_ids = [name for name in standing.advisories if name in policy.refused_advisories or name not in accepted]
    found.check("advisories", not refused_ids, f"the policy does not accept {', '.join(refused_ids)}")
    reason = f"the collateral is of evaluation {standing.evaluation}, the policy asks for {policy.min_tcb_evaluation}"
    found.check("tcb evaluation", standing.evaluation >= policy.min_tcb_evaluation, reason)


def _shown(text: str) -> str:
    """What collateral or a log says, short, on one line of plain letters."""
    return "".join(letter if " " <= letter <= "~" else " " for letter in text[:MAX_REASON])


def _signed(key: object, signature: bytes, data: bytes) -> bool:
    return ecdsa_signed(key, ec.SECP256R1, SHA256(), signature, data)


def _number(little: bytes) -> str:
    return f"{int.from_bytes(little, 'little'):016x}"


# Intel TDX module ABI, ATTRIBUTES: bits 7:0 put a TD under debug in one way or another.
UNDER_DEBUG = 0xFF
SEPT_VE_DISABLE = 1 << 28
MIGRATABLE = 1 << 29
HARMLESS = 1 << 30 | 1 << 31  # Protection keys and key locker, which only the TD uses.


def _examine_launch(report: TdReport, policy: TdxPolicy, found: Examination) -> None:
    if not policy.launches:
        found.skipped("launch", "the policy names no [[tdx.launches]]: any software in a real TD could be this one")
        return
    nearest = min(policy.launches, key=lambda launch: len(launch.differences(report)))
    wrong = nearest.differences(report)
    shown = report.mrtd.hex()
    found.check("launch", not wrong, f"not one the policy accepts: the nearest differs in {', '.join(wrong)}", shown)
    if not wrong and nearest.rtmr0 == ANY:
        found.check("rtmr0", False, "the firmware's settings are not compared", allowed_by="launches rtmr0 any")


def _examine_attributes(report: TdReport, policy: TdxPolicy, found: Examination) -> None:
    if policy.td_attributes is not None:
        found.listed("td attributes", f"{report.td_attributes:016x}", policy.td_attributes, "tdx.td_attributes")
    if policy.xfam is not None:
        found.listed("xfam", _number(report.xfam), policy.xfam, "tdx.xfam")
    attributes = report.td_attributes
    found.check("debug", not attributes & UNDER_DEBUG, "the TD runs under debug: its host reads its memory")
    exposed = "the host may take pages from the TD and make it fault (SEPT_VE_DISABLE is off)"
    if attributes & SEPT_VE_DISABLE or policy.require_sept_ve_disable:
        found.check("sept ve disable", bool(attributes & SEPT_VE_DISABLE), exposed)
    elif not policy.allow_sept_ve:
        found.skipped("sept ve disable", f"{exposed}; no collateral passes with this", required=False)
    else:
        found.check("sept ve disable", False, exposed, allowed_by="allow_sept_ve")
        # dcap-qvl stopped at this bit and did not check the others.
        found.check("attributes", not attributes & ~HARMLESS, f"{attributes:#x} has bits set that are not understood")
    found.check("migration", not attributes & MIGRATABLE, "the TD can be migrated by a TD that is not attested")
    if report.version != "1.0":
        found.check("service td", not any(report.mrservicetd), "a service TD that is not attested is bound to this one")


def _examine_module(report: TdReport, policy: TdxPolicy, found: Examination) -> None:
    holds = not any(report.mrsignerseam) and not any(report.seam_attributes)
    found.check("tdx module", holds, "the TDX module is not one signed by Intel, or has attributes")
    if not policy.min_tee_tcb_svn:
        found.skipped("tee tcb svn", "the policy names no floor", required=False)
        return
    floor = bytes.fromhex(policy.min_tee_tcb_svn)
    holds = all(have >= want for have, want in zip(report.tee_tcb_svn, floor, strict=True))
    found.check("tee tcb svn", holds, f"{report.tee_tcb_svn.hex()} lies below {floor.hex()}")
