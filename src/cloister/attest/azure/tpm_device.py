"""TCG TPM 2.0 Library part 3, rev. 1.59: NV_ReadPublic (§31.6), NV_Read (§31.13), Quote (§18.4), PCR_Read (§22.4),
marshalled by hand (docs/adr/0012), with the empty password of Azure's vTPM. Verifies nothing."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from cloister.attest.azure.hcl import SHA256, Reader
from cloister.errors import SetupError

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
_TRIES: Final = 5


class NoSuchHandle(SetupError):
    """The TPM has no such key or index."""


class Transport(Protocol):
    def transmit(self, command: bytes) -> bytes: ...


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
    """Commands to a TPM. SetupError where it refuses one, or answers otherwise than the specification has it."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def read_index(self, index: int) -> bytes:
        public = Reader(self._command(_NO_SESSIONS, _NV_READ_PUBLIC, struct.pack(">I", index)), SetupError).nested()
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
            piece = Reader(self._command(_SESSIONS, _NV_READ, asked), SetupError).sized()
            if len(piece) != wanted:
                raise SetupError("The TPM reads less of its index than was asked for.")
            data += piece
        return data

    def quote(self, key: int, data: bytes, pcrs: Sequence[int]) -> tuple[bytes, bytes]:
        """What the TPM attests to (TPMS_ATTEST) and the key's signature on it, RSASSA over SHA-256."""
        scheme = struct.pack(">HH", _RSASSA, SHA256)
        asked = struct.pack(">I", key) + _PASSWORD + struct.pack(">H", len(data)) + data + scheme + _selection(pcrs)
        answer = Reader(self._command(_SESSIONS, _QUOTE, asked), SetupError)
        message = answer.sized()
        if (answer.number(2), answer.number(2)) != (_RSASSA, SHA256):
            raise SetupError("The TPM does not sign its quotes by RSASSA with SHA-256.")
        return message, answer.sized()

    def read_pcrs(self, pcrs: Sequence[int]) -> dict[int, bytes]:
        """Their values in the SHA-256 bank. A TPM returns a few at a time."""
        values: dict[int, bytes] = {}
        while missing := [index for index in pcrs if index not in values]:
            answer = Reader(self._command(_NO_SESSIONS, _PCR_READ, _selection(missing)), SetupError)
            answer.take(4)
            selected = answer.selection()
            digests = [answer.sized() for _ in range(answer.number(4))]
            if not selected or len(selected) != len(digests) or not set(selected) <= set(missing):
                raise SetupError("The TPM does not return the requested PCRs.", hint="Is its SHA-256 bank on?")
            values |= dict(zip(selected, digests, strict=True))
        return values

    def _command(self, tag: int, code: int, body: bytes) -> bytes:
        command = struct.pack(">HII", tag, 10 + len(body), code) + body
        for _ in range(_TRIES):
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
        parameters = Reader(response[10:], SetupError)
        return parameters.take(parameters.number(4)) if tag == _SESSIONS else response[10:]


def _selection(pcrs: Sequence[int]) -> bytes:
    """TPML_PCR_SELECTION of one bank, SHA-256."""
    return struct.pack(">IHB", 1, SHA256, 3) + sum(1 << index for index in pcrs).to_bytes(3, "little")
