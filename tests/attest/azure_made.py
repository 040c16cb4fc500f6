"""Azure VMs of our own: a paravisor on a chip of ours, its runtime data, and its vTPM. Nothing is Azure's."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
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
