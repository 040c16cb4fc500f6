"""The attester of an Azure confidential VM: its vTPM's quote over SHA-256 of the client's 64 bytes, beside the report
that Microsoft's paravisor left in the vTPM at the start. It checks the quote before it shows it: a VM with another key
fails at its start."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.hashes import SHA256

from cloister.attest.attester import REPORT_DATA_BYTES, Attestation, NoFirmware, Tee, certificates_of
from cloister.attest.azure.hcl import HclReport, attestation_key, read_hcl
from cloister.attest.azure.metadata import Metadata
from cloister.attest.azure.tpm import PCRS, quote_nonce, read_tpm_quote
from cloister.attest.azure.tpm_device import DEVICE, NoSuchHandle, Tpm, TpmDevice
from cloister.errors import EvidenceInvalid, SetupError

HCL_INDEX: Final = 0x01400001
ATTESTATION_KEY_HANDLE: Final = 0x81000003
TD_REPORT_BYTES: Final = 1024
ENDORSED_S: Final = 3600.0  # for certificates and a TD's quote: the host's firmware may be updated meanwhile
_TRIES: Final = 3


@dataclass(frozen=True)
class Endorsement:
    """Proof that the hardware's report is genuine: AMD's certificates, or Intel's quote."""

    certificates: tuple[bytes, ...] = ()
    td_quote: bytes = b""


class AzureAttester:
    """`tpm` and `metadata` are this machine's. NoFirmware where it is no confidential VM."""

    def __init__(
        self, tpm: Tpm | None = None, metadata: Metadata | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if tpm is None and not DEVICE.exists():
            raise NoFirmware("This machine has no vTPM.", hint="--attester azure is for Azure's confidential VMs.")
        self._tpm = tpm or Tpm(TpmDevice())
        self._metadata = metadata or Metadata()
        self._clock = clock
        self._endorsed: tuple[bytes, float, Endorsement] | None = None
        self.attest(bytes(REPORT_DATA_BYTES))  # fails at the start, not at the first client

    @property
    def tee(self) -> Tee:
        return "azure"

    def attest(self, report_data: bytes) -> Attestation:
        if len(report_data) != REPORT_DATA_BYTES:
            raise SetupError(f"A report covers {REPORT_DATA_BYTES} bytes, not {len(report_data)}.")
        hcl_report = self._read_hcl()
        hcl = _parsed(hcl_report)
        quote = self._quote(hcl, quote_nonce(report_data))
        endorsement = self._endorsement(hcl)
        document = {"version": 1, "hcl_report": _text(hcl_report), "tpm_quote": quote}
        if endorsement.td_quote:
            document["td_quote"] = _text(endorsement.td_quote)
        return Attestation("azure", msgspec.json.encode(document), endorsement.certificates)

    def _read_hcl(self) -> bytes:
        try:
            return self._tpm.read_index(HCL_INDEX)
        except NoSuchHandle:
            raise NoFirmware(
                "This machine's TPM holds no report of Azure's paravisor.",
                hint="--attester azure is for Azure's confidential VMs.",
            ) from None

    def _quote(self, hcl: HclReport, nonce: bytes) -> dict[str, object]:
        """The vTPM's quote of all PCRs over this nonce. A PCR may change between the two: then it tries again."""
        key = attestation_key(hcl.runtime)
        if key is None:
            raise SetupError("The paravisor's runtime data names no key of the vTPM that could sign.")
        for _ in range(_TRIES):
            message, signature = self._tpm.quote(ATTESTATION_KEY_HANDLE, nonce, range(PCRS))
            pcrs = self._tpm.read_pcrs(range(PCRS))
            try:
                key.verify(signature, message, padding.PKCS1v15(), SHA256())
                quoted = read_tpm_quote(message)
            except (InvalidSignature, EvidenceInvalid):
                raise SetupError("The vTPM's key is not the one that the paravisor reported.") from None
            if quoted.nonce != nonce:
                raise SetupError("The vTPM quotes another nonce than it was given.")
            if quoted.covers(pcrs):
                values = [pcrs[index].hex() for index in range(PCRS)]
                return {"message": message.hex(), "signature": signature.hex(), "pcrs": values}
        raise SetupError("The PCRs of this machine keep changing.", hint="Wait until it has booted.")

    def _endorsement(self, hcl: HclReport) -> Endorsement:
        now = self._clock()
        if self._endorsed is not None:
            runtime, since, kept = self._endorsed
            if runtime == hcl.report_data and now - since < ENDORSED_S:
                return kept
        if hcl.tee == "sev-snp":
            found = Endorsement(certificates=certificates_of(*self._metadata.amd_certificates()))
        else:
            found = Endorsement(td_quote=self._metadata.td_quote(hcl.report[:TD_REPORT_BYTES]))
        self._endorsed = hcl.report_data, now, found
        return found


def _parsed(report: bytes) -> HclReport:
    try:
        return read_hcl(report)
    except EvidenceInvalid as wrong:
        raise SetupError(f"The paravisor's report cannot be used: {wrong.message}") from None


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
