"""Whether evidence of an Azure confidential VM proves what a policy asks for: JSON with the HCL report, the TPM quote,
and VCEK or TD quote, or an HCL report alone. `attest.snp` and `attest.tdx` judge the hardware's report."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.hashes import SHA256
from msgspec import Meta, Struct

from cloister.attest.azure.hcl import MAGIC, PCRS, HclReport, TpmQuote, attestation_key, read_hcl, read_tpm_quote
from cloister.attest.snp import SnpPolicy, verify_snp
from cloister.attest.snp.report import AMD_ROOTS, Product
from cloister.attest.tdx import TdxPolicy, verify_tdx
from cloister.attest.tdx.verify import INTEL_ROOTS
from cloister.checks import Examination, Verdict, decode_evidence, decode_text
from cloister.errors import EvidenceInvalid

MAX_EVIDENCE_BYTES = 262144
Blob = Annotated[str, Meta(max_length=131072)]  # Hex or base64.


class _Quote(Struct, frozen=True):
    message: Blob
    signature: Blob
    pcrs: Annotated[tuple[Blob, ...], Meta(max_length=PCRS)]


class _Document(Struct, frozen=True):
    hcl_report: Blob
    tpm_quote: _Quote | None = None
    vcek: Blob | None = None
    td_quote: Blob | None = None


class AzurePolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """What the guest must be, by its vTPM. The hardware and the paravisor are `[snp]`'s and `[tdx]`'s to name."""

    pcrs: dict[str, tuple[str, ...]] = {}  # hex values (SHA-256) by number; without any nothing passes

    def __post_init__(self) -> None:
        for index, values in self.pcrs.items():
            right = values and all(re.fullmatch("[0-9a-fA-F]{64}", one) for one in values)
            if not right or not re.fullmatch("[0-9]{1,2}", index) or int(index) >= PCRS:
                raise ValueError("pcrs: 64 hexadecimal digits by the number of the PCR, 0 to 23")


def verify_azure(
    evidence: bytes,
    certificates: Sequence[bytes],
    collateral: bytes | None,
    nonce: bytes | None,
    *,
    at: datetime,
    policy: AzurePolicy,
    snp: SnpPolicy,
    tdx: TdxPolicy,
    snp_roots: Mapping[Product, str] = AMD_ROOTS,
    tdx_roots: frozenset[str] = INTEL_ROOTS,
) -> Verdict:
    """`certificates` are AMD's, with revocation lists among them; `collateral` is Intel's."""
    if evidence.startswith(MAGIC):
        document = _Document(evidence.hex())
    else:
        hint = "It is JSON with `hcl_report`, `tpm_quote`, and `vcek` or `td_quote`, or an HCL report alone."
        document = decode_evidence(evidence, _Document, "Azure's evidence", limit=MAX_EVIDENCE_BYTES, hint=hint)
    hcl = read_hcl(_bytes(document.hcl_report))
    found = Examination()
    bound = hcl.report_data
    if hcl.tee == "sev-snp":
        vcek = document.vcek or ""
        given = [*certificates, vcek.encode() if "-----BEGIN" in vcek or not vcek else _bytes(vcek)]
        # A guest beside the paravisor (VMPL above 0) could have any runtime data reported.
        paravisor = msgspec.structs.replace(snp, vmpl=(0,))
        verdict = verify_snp(hcl.report, given, at=at, policy=paravisor, report_data=bound, roots=snp_roots)
        found.include(_about_runtime_data(verdict))
    elif document.td_quote is not None:
        quote = _bytes(document.td_quote)
        verdict = verify_tdx(quote, collateral, at=at, policy=tdx, report_data=bound, roots=tdx_roots)
        found.include(_about_runtime_data(verdict))
    else:
        found.skipped("quote", "a TD report alone proves nothing: its quote is missing")
    configuration = {key: str(value)[:80] for key, value in hcl.runtime.vm_configuration.items()}
    found.claim(platform="azure", vm_configuration=configuration, user_data=hcl.runtime.user_data)
    _examine_tpm(hcl, document.tpm_quote, nonce, policy, found)
    return found.verdict()


def _about_runtime_data(verdict: Verdict) -> Verdict:
    """The same verdict with the check `report data` renamed: here it compares the runtime data."""
    reason = "the hardware's report is not over this runtime data"
    renamed = (
        replace(one, name="runtime data", reason=one.reason and reason) if one.name == "report data" else one
        for one in verdict.checks
    )
    return Verdict(tuple(renamed), verdict.claims)


def _examine_tpm(
    hcl: HclReport, quote: _Quote | None, nonce: bytes | None, policy: AzurePolicy, found: Examination
) -> None:
    key = attestation_key(hcl.runtime)
    found.check("vtpm key", key is not None, "the runtime data names no RSA key of the vTPM (HCLAkPub)")
    if quote is None or key is None:
        reason = "the runtime data names no key" if key is None else "no quote of the vTPM was given"
        found.skipped("tpm quote", f"{reason}: nothing shows that the report is new, nor which guest runs")
        return
    message, signature = _bytes(quote.message), _bytes(quote.signature)
    read = read_tpm_quote(message)
    try:
        key.verify(signature, message, padding.PKCS1v15(), SHA256())
        signed = True
    except InvalidSignature:
        signed = False
    found.check("tpm quote", signed, "the vTPM's quote is not signed by the key the runtime data names")
    found.compare("nonce", read.nonce, nonce, "the vTPM's quote answers another nonce")
    _examine_pcrs(read, [_bytes(one) for one in quote.pcrs], policy, found)


def _examine_pcrs(quote: TpmQuote, values: list[bytes], policy: AzurePolicy, found: Examination) -> None:
    """Values come for all 24 PCRs, or for those selected."""
    numbers = range(PCRS) if len(values) == PCRS else quote.selected
    pcrs = {index: value for index, value in zip(numbers, values, strict=False) if index in quote.selected}
    quoted = len(numbers) == len(values) and quote.covers(pcrs)
    found.check("pcrs quoted", quoted, "the values given are not those the vTPM quoted")
    found.claim(pcrs={str(index): value.hex() for index, value in pcrs.items()})
    if not policy.pcrs:
        found.skipped("pcrs", "the policy names no [azure] pcrs: any guest of Azure's could be this one")
        return
    lowered = {int(index): {one.lower() for one in accepted} for index, accepted in policy.pcrs.items()}
    wrong = [str(index) for index, accepted in lowered.items() if pcrs.get(index, b"").hex() not in accepted]
    found.check("pcrs", quoted and not wrong, f"not in the policy: {', '.join(wrong) or 'not quoted'}")


def _bytes(blob: Blob) -> bytes:
    if (decoded := decode_text(blob.encode())) is None:
        raise EvidenceInvalid("A part of Azure's evidence is neither hex nor base64.")
    return decoded
