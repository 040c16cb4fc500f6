"""Azure VMs of our own: a paravisor on a chip of ours, its runtime data, and its vTPM. Nothing is Azure's."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

from tests.attest.snp_maker import Chip, rsa_key

NONCE = b"a nonce of any length up to 64"
PCRS = tuple(bytes([index]) * 32 for index in range(24))


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def tpm_message(
    nonce: bytes, selected: tuple[int, ...] = tuple(range(24)), digest: bytes | None = None, **parts: Any
) -> bytes:
    """TPMS_ATTEST of a quote."""
    value = digest or hashlib.sha256(b"".join(PCRS[index] for index in selected)).digest()
    bitmap = sum(1 << index for index in selected).to_bytes(3, "little")
    whole = parts.get("magic", b"\xffTCG") + struct.pack(">H", parts.get("kind", 0x8018))
    whole += struct.pack(">H", 34) + b"\0\x0b" + bytes(32) + struct.pack(">H", len(nonce)) + nonce + bytes(17 + 8)
    whole += struct.pack(">IHB", parts.get("banks", 1), parts.get("bank", 0x0B), 3) + bitmap
    return whole + struct.pack(">H", len(value)) + value


@dataclass
class MadeVm:
    """`document` is its evidence in the JSON of Confidential Containers' tools."""

    chip: Chip = field(default_factory=Chip)
    key: rsa.RSAPrivateKey = field(default_factory=lambda: rsa_key("vtpm"))

    def runtime(self, **changes: Any) -> bytes:
        numbers = self.key.public_key().public_numbers()
        n = base64url(numbers.n.to_bytes((numbers.n.bit_length() + 7) // 8, "big"))
        keys = [{"kid": "HCLAkPub", "key_ops": ["sign"], "kty": "RSA", "e": "AQAB", "n": n}]
        configuration = {"console-enabled": True, "secure-boot": True, "tpm-enabled": True}
        return json.dumps({"keys": keys, "vm-configuration": configuration, "user-data": "00" * 64} | changes).encode()

    def hcl(self, runtime: bytes | None = None, report: bytes | None = None, *, kind: int = 2, **fields: Any) -> bytes:
        data = self.runtime() if runtime is None else runtime
        if report is None:
            report = self.chip.report(report_data=hashlib.sha256(data).digest() + bytes(32), **fields)
        head = b"HCLA" + struct.pack("<7I", 2, 1236 + len(data), 2, 0, 0, 0, 0)
        request = struct.pack("<5I", 20 + len(data), 1, kind, 1, len(data))
        return (head + report.ljust(1184, b"\0") + request + data).ljust(2600, b"\0")

    def quote(self, message: bytes | None = None, pcrs: tuple[bytes, ...] = PCRS, key: Any = None) -> dict[str, Any]:
        message = tpm_message(NONCE) if message is None else message
        signature = (key or self.key).sign(message, padding.PKCS1v15(), SHA256())
        return {"message": message.hex(), "signature": signature.hex(), "pcrs": [one.hex() for one in pcrs]}

    def document(self, **changes: Any) -> dict[str, Any]:
        whole = {"version": 1, "hcl_report": base64url(self.hcl()), "tpm_quote": self.quote()}
        return whole | {"vcek": base64url(self.chip.leaf())} | changes


class MadeTpm:
    """A TPM that answers the commands evidence needs, to the letter of the specification, and no other."""

    def __init__(self, vm: MadeVm, report: bytes | None = None) -> None:
        self.vm = vm
        self.indexes = {0x01400001: vm.hcl() if report is None else report}
        self.keys = {0x81000003: vm.key}
        self.pcrs = list(PCRS)
        self.commands: list[int] = []
        self.answers: list[bytes] = []
        """Whole responses to be given before any of its own."""
        self.after_quote: Callable[[], None] = lambda: None

    def transmit(self, command: bytes) -> bytes:
        tag, size, code = struct.unpack(">HII", command[:10])
        assert size == len(command)
        self.commands.append(code)
        if self.answers:
            return self.answers.pop(0)
        body = command[10:]
        known = {0x169: self._read_public, 0x14E: self._read, 0x158: self._quote, 0x17E: self._read_pcrs}
        try:
            answer = known[code](body)
        except KeyError:
            return response(0x18B)
        return response(0, answer, sessions=tag == 0x8002)

    def _read_public(self, body: bytes) -> bytes:
        (index,) = struct.unpack(">I", body)
        public = struct.pack(">IHI", index, 0x0B, 0x42072001) + struct.pack(">HH", 0, len(self.indexes[index]))
        return sized(public) + sized(b"\0\x0b" + bytes(32))

    def _read(self, body: bytes) -> bytes:
        owner, index = struct.unpack(">II", body[:8])
        assert owner == 0x40000001 and body[8:21] == EMPTY_PASSWORD
        size, offset = struct.unpack(">HH", body[21:])
        assert size <= 1024
        return sized(self.indexes[index][offset : offset + size])

    def _quote(self, body: bytes) -> bytes:
        key = self.keys[struct.unpack(">I", body[:4])[0]]
        assert body[4:17] == EMPTY_PASSWORD
        length = int.from_bytes(body[17:19], "big")
        nonce, rest = body[19 : 19 + length], body[19 + length :]
        assert rest[:4] == b"\0\x14\0\x0b" and length <= 50
        selected = self._selected(rest[4:])
        digest = hashlib.sha256(b"".join(self.pcrs[index] for index in selected)).digest()
        message = tpm_message(nonce, selected, digest)
        signature = key.sign(message, padding.PKCS1v15(), SHA256())
        self.after_quote()
        return sized(message) + b"\0\x14\0\x0b" + sized(signature)

    def _read_pcrs(self, body: bytes) -> bytes:
        told = self._selected(body)[:8]
        bitmap = sum(1 << index for index in told).to_bytes(3, "little")
        values = b"".join(sized(self.pcrs[index]) for index in told)
        return struct.pack(">IIHB", 7, 1, 0x0B, 3) + bitmap + struct.pack(">I", len(told)) + values

    def _selected(self, selection: bytes) -> tuple[int, ...]:
        assert selection[:7] == struct.pack(">IHB", 1, 0x0B, 3) and len(selection) == 10
        bitmap = int.from_bytes(selection[7:], "little")
        return tuple(index for index in range(24) if bitmap >> index & 1)


EMPTY_PASSWORD = struct.pack(">IIHBH", 9, 0x40000009, 0, 0, 0)


def sized(data: bytes) -> bytes:
    return struct.pack(">H", len(data)) + data


def response(code: int, parameters: bytes = b"", *, sessions: bool = False) -> bytes:
    """A TPM's response: with sessions, its parameters are counted, and the session's own answer follows."""
    if sessions:
        parameters = struct.pack(">I", len(parameters)) + parameters + struct.pack(">HBH", 0, 1, 0)
    return struct.pack(">HII", 0x8002 if sessions else 0x8001, 10 + len(parameters), code) + parameters
