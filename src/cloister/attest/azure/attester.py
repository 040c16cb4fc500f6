"""The attester of an Azure confidential VM: its vTPM's quote over SHA-256 of the client's 64 bytes, beside the report
that the paravisor left in the vTPM. TCG TPM 2.0 Library part 3, rev. 1.59 (docs/adr/0012): NV_ReadPublic (§31.6),
NV_Read (§31.13), Quote (§18.4), PCR_Read (§22.4). The metadata service's answers are not trusted."""

import base64
import binascii
import errno
import http.client
import json
import os
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.hashes import SHA256
from msgspec import Meta, Struct

from cloister.attest.attester import REPORT_DATA_BYTES, Attestation, NoFirmware, Tee, certificates_of
from cloister.attest.azure.hcl import (
    PCRS,
    TPM_SHA256,
    HclReport,
    TpmReader,
    attestation_key,
    quote_nonce,
    read_hcl,
    read_tpm_quote,
)
from cloister.errors import EvidenceInvalid, SetupError

DEVICE: Final = Path("/dev/tpmrm0")
MAX_RESPONSE_BYTES: Final = 4096
MAX_NV_BYTES: Final = 16384
_NV_CHUNK: Final = 512  # Every TPM can read this much at once.
_NO_SESSIONS, _SESSIONS = 0x8001, 0x8002
_NV_READ_PUBLIC, _NV_READ, _QUOTE, _PCR_READ = 0x169, 0x14E, 0x158, 0x17E
_OWNER: Final = 0x40000001
_PASSWORD: Final = struct.pack(">IIHBH", 9, 0x40000009, 0, 0, 0)  # One session: TPM_RS_PW with an empty password.
_RSASSA: Final = 0x14
_RETRY: Final = 0x922
_BAD_HANDLE: Final = 0x8B
_TPM_TRIES: Final = 5


class NoSuchHandle(SetupError):
    """The TPM has no such key or index."""


class TpmDevice:
    """The kernel's resource manager, which keeps us apart from other users of the TPM."""

    def __init__(self, path: Path = DEVICE) -> None:
        self._path = path

    def transmit(self, command: bytes) -> bytes:
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.write(file, command)
                return os.read(file, MAX_RESPONSE_BYTES)
            finally:
                os.close(file)
        except OSError as wrong:
            refused = wrong.errno in (errno.EACCES, errno.EPERM)
            hint = "Run as root or in the group `tss`." if refused else "Does this VM have a TPM?"
            name = errno.errorcode.get(wrong.errno or 0, "?")
            raise SetupError(f"{self._path} does not answer ({name}).", hint=hint) from None


class Tpm:
    def __init__(self, transport: TpmDevice) -> None:
        self._transport = transport

    def read_index(self, index: int) -> bytes:
        public = _reader(self._command(_NO_SESSIONS, _NV_READ_PUBLIC, struct.pack(">I", index)).sized())
        if public.number(4) != index:
            raise SetupError("The TPM describes another index than was asked for.")
        public.take(2 + 4)
        public.sized()
        size, data = public.number(2), b""
        if size > MAX_NV_BYTES:
            raise SetupError(f"The TPM's index has {size} bytes; {MAX_NV_BYTES} are read.")
        while len(data) < size:
            wanted = min(_NV_CHUNK, size - len(data))
            asked = struct.pack(">II", _OWNER, index) + _PASSWORD + struct.pack(">HH", wanted, len(data))
            piece = self._command(_SESSIONS, _NV_READ, asked).sized()
            if len(piece) != wanted:
                raise SetupError("The TPM reads less of its index than was asked for.")
            data += piece
        return data

    def quote(self, key: int, data: bytes, pcrs: Sequence[int]) -> tuple[bytes, bytes]:
        scheme = struct.pack(">HH", _RSASSA, TPM_SHA256)
        asked = struct.pack(">I", key) + _PASSWORD + struct.pack(">H", len(data)) + data + scheme + _selection(pcrs)
        answer = self._command(_SESSIONS, _QUOTE, asked)
        message = answer.sized()
        if (answer.number(2), answer.number(2)) != (_RSASSA, TPM_SHA256):
            raise SetupError("The TPM does not sign its quotes by RSASSA with SHA-256.")
        return message, answer.sized()

    def read_pcrs(self, pcrs: Sequence[int]) -> dict[int, bytes]:
        """Their values in the SHA-256 bank. A TPM returns a few at a time."""
        values: dict[int, bytes] = {}
        while missing := [index for index in pcrs if index not in values]:
            answer = self._command(_NO_SESSIONS, _PCR_READ, _selection(missing))
            answer.take(4)
            selected = answer.selection()
            digests = [answer.sized() for _ in range(answer.number(4))]
            if not selected or len(selected) != len(digests) or not set(selected) <= set(missing):
                raise SetupError("The TPM does not return the requested PCRs.", hint="Is its SHA-256 bank on?")
            values |= dict(zip(selected, digests, strict=True))
        return values

    def _command(self, tag: int, code: int, body: bytes) -> TpmReader:
        command = struct.pack(">HII", tag, 10 + len(body), code) + body
        for _ in range(_TPM_TRIES):
            response = self._transport.transmit(command)
            if len(response) < 10 or len(response) != int.from_bytes(response[2:6], "big"):
                raise SetupError("The TPM's answer has another length than it states.")
            result = int.from_bytes(response[6:10], "big")
            if result != _RETRY:
                break
        if result & 0x80 and result & 0xBF == _BAD_HANDLE:
            raise NoSuchHandle(f"The TPM lacks what command {code:#x} needs.")
        if result:
            raise SetupError(f"The TPM refuses command {code:#x} with {result:#x}.")
        parameters = _reader(response[10:])
        return _reader(parameters.take(parameters.number(4))) if tag == _SESSIONS else parameters


def _reader(data: bytes) -> TpmReader:
    return TpmReader(data, "The TPM's answer", SetupError)


def _selection(pcrs: Sequence[int]) -> bytes:
    """TPML_PCR_SELECTION of one bank, SHA-256."""
    return struct.pack(">IHB", 1, TPM_SHA256, 3) + sum(1 << index for index in pcrs).to_bytes(3, "little")


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

    def __init__(self, host: str = HOST, port: int = 80) -> None:
        self._place = host, port

    def amd_certificates(self) -> tuple[bytes, bytes]:
        answer = self._ask("GET", "/metadata/THIM/amd/certification", None, _Certificates)
        return answer.vcek_cert.encode(), answer.certificate_chain.encode()

    def td_quote(self, report: bytes) -> bytes:
        body = json.dumps({"report": base64.urlsafe_b64encode(report).decode()})
        answer = self._ask("POST", "/acc/tdquote", body, _Quoted)
        try:
            return base64.urlsafe_b64decode(answer.quote + "=" * (-len(answer.quote) % 4))
        except (binascii.Error, ValueError):
            raise SetupError("Azure's metadata service gave a quote that is not base64.") from None

    def _ask(self, method: str, path: str, body: str | None, kind: type[_Answer]) -> _Answer:
        host, port = self._place
        connection = http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
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


class AzureAttester:
    """`tpm` and `metadata` are this machine's. NoFirmware where it is no confidential VM."""

    tee: Tee = "azure"

    def __init__(
        self, tpm: Tpm | None = None, metadata: Metadata | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if tpm is None and not DEVICE.exists():
            raise NoFirmware("This machine has no vTPM.", hint="--attester azure is for Azure's confidential VMs.")
        self._tpm = tpm or Tpm(TpmDevice())
        self._metadata = metadata or Metadata()
        self._clock = clock
        self._endorsed: tuple[bytes, float, tuple[tuple[bytes, ...], bytes]] | None = None
        self.attest(bytes(REPORT_DATA_BYTES))  # fails at the start, not at the first client

    def attest(self, report_data: bytes) -> Attestation:
        if len(report_data) != REPORT_DATA_BYTES:
            raise SetupError(f"A report covers {REPORT_DATA_BYTES} bytes, not {len(report_data)}.")
        try:
            hcl_report = self._tpm.read_index(HCL_INDEX)
            hcl = read_hcl(hcl_report)
        except NoSuchHandle:
            hint = "--attester azure is for Azure's confidential VMs."
            raise NoFirmware("This machine's TPM holds no report of Azure's paravisor.", hint=hint) from None
        except EvidenceInvalid as wrong:
            raise SetupError(f"The paravisor's report cannot be used: {wrong.message}") from None
        quote = self._quote(hcl, quote_nonce(report_data))
        certificates, td_quote = self._endorsement(hcl)
        document = {"version": 1, "hcl_report": _text(hcl_report), "tpm_quote": quote}
        if td_quote:
            document["td_quote"] = _text(td_quote)
        return Attestation("azure", msgspec.json.encode(document), certificates)

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

    def _endorsement(self, hcl: HclReport) -> tuple[tuple[bytes, ...], bytes]:
        """What proves the hardware's report: AMD's certificates, or Intel's quote."""
        now = self._clock()
        if self._endorsed is not None:
            runtime, since, kept = self._endorsed
            if runtime == hcl.report_data and now - since < ENDORSED_S:
                return kept
        if hcl.tee == "sev-snp":
            found = certificates_of(*self._metadata.amd_certificates()), b""
        else:
            found = (), self._metadata.td_quote(hcl.report[:TD_REPORT_BYTES])
        self._endorsed = hcl.report_data, now, found
        return found


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
