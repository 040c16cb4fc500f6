"""The attester of an Azure confidential VM: its vTPM's quote over SHA-256 of the client's 64 bytes, beside the report
that Microsoft's paravisor left in the vTPM at the start. It checks the quote before it shows it: a VM with another key
fails at its start."""

from __future__ import annotations

import base64
import binascii
import http.client
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.hashes import SHA256
from msgspec import Meta, Struct

from cloister.attest.attester import REPORT_DATA_BYTES, Attestation, NoFirmware, Tee, certificates_of
from cloister.attest.azure.hcl import PCRS, HclReport, attestation_key, quote_nonce, read_hcl, read_tpm_quote
from cloister.attest.azure.tpm_device import DEVICE, NoSuchHandle, Tpm, TpmDevice
from cloister.errors import EvidenceInvalid, SetupError

HOST: Final = "169.254.169.254"
PATIENCE_S: Final = 10.0
MAX_ANSWER_BYTES: Final = 1 << 17

_Answer = TypeVar("_Answer")


class _Certificates(Struct, frozen=True, rename="camel"):
    vcek_cert: Annotated[str, Meta(min_length=1, max_length=16384)]
    certificate_chain: Annotated[str, Meta(min_length=1, max_length=32768)]


class _Quoted(Struct, frozen=True):
    quote: Annotated[str, Meta(min_length=1, max_length=65536)]


class Metadata:
    """SetupError where it does not answer, or not in this form."""

    def __init__(self, host: str = HOST, port: int = 80, patience_s: float = PATIENCE_S) -> None:
        self._place = host, port
        self._patience_s = patience_s

    def amd_certificates(self) -> tuple[bytes, bytes]:
        answer = self._ask("GET", "/metadata/THIM/amd/certification", None, _Certificates)
        return answer.vcek_cert.encode(), answer.certificate_chain.encode()

    def td_quote(self, report: bytes) -> bytes:
        """Intel's quote of a TD report, which only its own processor can have made."""
        body = json.dumps({"report": base64.urlsafe_b64encode(report).decode()})
        answer = self._ask("POST", "/acc/tdquote", body, _Quoted)
        try:
            return base64.urlsafe_b64decode(answer.quote + "=" * (-len(answer.quote) % 4))
        except (binascii.Error, ValueError):
            raise SetupError("Azure's metadata service gave a quote that is not base64.") from None

    def _ask(self, method: str, path: str, body: str | None, kind: type[_Answer]) -> _Answer:
        host, port = self._place
        connection = http.client.HTTPConnection(host, port, timeout=self._patience_s)
        try:
            connection.request(method, path, body, {"Metadata": "true", "Content-Type": "application/json"})
            response = connection.getresponse()
            status, data = response.status, response.read(MAX_ANSWER_BYTES + 1)
        except (OSError, http.client.HTTPException) as wrong:
            name = type(wrong).__name__
            raise SetupError(f"Azure's metadata service does not answer ({name}).", hint=f"{host} is where.") from None
        finally:
            connection.close()
        if status != 200 or len(data) > MAX_ANSWER_BYTES:
            raise SetupError(f"Azure's metadata service answers {path} with status {status}, {len(data)} bytes.")
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.MsgspecError, ValueError, RecursionError) as wrong:
            name = type(wrong).__name__
            raise SetupError(f"Azure's metadata service answers {path} in another form ({name}).") from None


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
