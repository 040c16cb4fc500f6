"""A chip of our own: root, intermediate and leaf keys as AMD has them, and reports they sign. Nothing here is AMD's."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from typing import Any, Literal
from uuid import UUID

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA384, HashAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding

from cloister.attest.chain import key_fingerprint
from cloister.attest.snp.report import Product

AT = datetime(2026, 3, 1, tzinfo=UTC)
FROM, UNTIL = AT - timedelta(days=100), AT + timedelta(days=100)
AMD = "1.3.6.1.4.1.3704.1."
CPUID = {"Milan": (0x19, 0x01, 1), "Genoa": (0x19, 0x11, 1), "Turin": (0x1A, 0x02, 1)}
TCB = {"bootloader": 4, "tee": 1, "snp": 27, "microcode": 219, "fmc": 0}
CHIP = bytes(range(1, 65))
VCEK, VLEK, ASK, ARK, CRL = (
    UUID(text)
    for text in (
        "63da758d-e664-4564-adc5-f4b93be8accd",
        "a8074bc2-a25a-483e-aae6-39c045a0b8a1",
        "4ab7b379-bbac-4fe4-a02f-05aef327c782",
        "c0b406a4-a803-4952-9743-3fb6014cd0ae",
        "92f81bc3-5811-4d3d-97ff-d19f88dc67ea",
    )
)


@cache
def rsa_key(which: str) -> rsa.RSAPrivateKey:
    """Slow to make, so made once for each name."""
    return rsa.generate_private_key(65537, 2048)


def der_integer(value: int) -> bytes:
    return bytes([2, 1, value]) if value < 0x80 else bytes([2, 2, 0, value])


def der_text(text: str) -> bytes:
    return bytes([0x16, len(text)]) + text.encode()


def name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])


def certificate(
    subject: str,
    key: Any,
    issuer: str,
    signer: rsa.RSAPrivateKey,
    *,
    ca: bool = True,
    serial: int = 7,
    since: datetime = FROM,
    until: datetime = UNTIL,
    extensions: Mapping[str, bytes] | None = None,
    hash_with: HashAlgorithm | None = None,
    critical: bool = False,
) -> bytes:
    """One certificate, DER."""
    builder = (
        x509.CertificateBuilder()
        .subject_name(name(subject))
        .issuer_name(name(issuer))
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(since)
        .not_valid_after(until)
    )
    if ca:
        usage = {
            word: word in ("key_cert_sign", "crl_sign")
            for word in (
                *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
                *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
            )
        }
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        builder = builder.add_extension(x509.KeyUsage(**usage), critical=True)
    for number, value in (extensions or {}).items():
        unknown = x509.UnrecognizedExtension(x509.ObjectIdentifier(AMD + number), value)
        builder = builder.add_extension(unknown, critical=critical)
    digest = hash_with or SHA384()
    padding = PSS(MGF1(digest), digest.digest_size)
    return builder.sign(signer, digest, rsa_padding=padding).public_bytes(Encoding.DER)


def leaf_extensions(product: Product, kind: str, tcb: Mapping[str, int]) -> dict[str, bytes]:
    numbers = {"bootloader": "3.1", "tee": "3.2", "snp": "3.3", "microcode": "3.8"}
    if product == "Turin":
        numbers["fmc"] = "3.9"
    found = {number: der_integer(tcb[part]) for part, number in numbers.items()}
    found["2"] = der_text(product if kind == "vlek" else f"{product}-B1")
    if kind == "vlek":
        found["5"] = der_text("CN=cloud.example")
    else:
        found["4"] = CHIP[:8] if product == "Turin" else CHIP
    return found


def pack_tcb(product: Product, tcb: Mapping[str, int]) -> bytes:
    if product == "Turin":
        return bytes([tcb["fmc"], tcb["bootloader"], tcb["tee"], tcb["snp"], 0, 0, 0, tcb["microcode"]])
    return bytes([tcb["bootloader"], tcb["tee"], 0, 0, 0, 0, tcb["snp"], tcb["microcode"]])


@dataclass
class Chip:
    """A chip (or, with a VLEK, a provider) whose reports verify under `roots`. Certificates take long to sign: they are
    made once."""

    product: Product = "Milan"
    kind: Literal["vcek", "vlek"] = "vcek"
    tcb: Mapping[str, int] = field(default_factory=lambda: dict(TCB))
    extensions: Mapping[str, bytes] = field(default_factory=dict)
    """On top of the leaf's usual ones; an empty value takes one away."""
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP384R1()))

    @property
    def ark_name(self) -> str:
        return f"ARK-{self.product}"

    @property
    def ask_name(self) -> str:
        return f"SEV-VLEK-{self.product}" if self.kind == "vlek" else f"SEV-{self.product}"

    @cached_property
    def ark(self) -> bytes:
        return certificate(self.ark_name, rsa_key("ark"), self.ark_name, rsa_key("ark"), serial=1)

    @cached_property
    def ask(self) -> bytes:
        return certificate(self.ask_name, rsa_key("ask"), self.ark_name, rsa_key("ark"), serial=2)

    def leaf(self, **changes: Any) -> bytes:
        extensions = leaf_extensions(self.product, self.kind, self.tcb) | dict(self.extensions)
        values = {"ca": False, "extensions": {key: value for key, value in extensions.items() if value}} | changes
        return certificate(f"SEV-{self.kind.upper()}", self.key, self.ask_name, rsa_key("ask"), **values)

    @cached_property
    def certificates(self) -> list[bytes]:
        return [self.leaf(), self.ask, self.ark]

    @cached_property
    def pieces(self) -> list[bytes]:
        """Certificates and revocation list: all that the default asks for."""
        return [*self.certificates, self.revocation_list()]

    @cached_property
    def roots(self) -> dict[Product, str]:
        return {self.product: key_fingerprint(x509.load_der_x509_certificate(self.ark))}

    def report(self, version: int = 3, *, sign: bool = True, **fields: Any) -> bytes:
        """A report with these fields changed, signed by this chip."""
        body = bytearray(1184)
        chip = CHIP[:8].ljust(64, b"\0") if self.product == "Turin" else CHIP
        cpuid = CPUID[self.product] if version >= 3 else (0, 0, 0)
        packed = pack_tcb(self.product, self.tcb)
        values = {
            "guest_svn": 1,
            "policy": 0x30000,
            "family_id": bytes(16),
            "image_id": bytes(16),
            "vmpl": 0,
            "algorithm": 1,
            "current_tcb": packed,
            "platform_info": 1,
            "flags": 4 if self.kind == "vlek" else 0,
            "report_data": bytes(range(64)),
            "measurement": b"\xaa" * 48,
            "host_data": bytes(32),
            "reported_tcb": packed,
            "cpuid": bytes(cpuid),
            "chip_id": bytes(64) if self.kind == "vlek" else chip,
            "committed_tcb": packed,
            "firmware": bytes([29, 55, 1, 0]),
            "committed_firmware": bytes([29, 55, 1, 0]),
            "launch_tcb": packed,
        } | fields
        struct.pack_into("<IIQ", body, 0, version, values["guest_svn"], values["policy"])
        struct.pack_into("<II", body, 0x30, values["vmpl"], values["algorithm"])
        struct.pack_into("<QI", body, 0x40, values["platform_info"], values["flags"])
        for place, key in {
            0x10: "family_id",
            0x20: "image_id",
            0x38: "current_tcb",
            0x50: "report_data",
            0x90: "measurement",
            0xC0: "host_data",
            0x180: "reported_tcb",
            0x188: "cpuid",
            0x1A0: "chip_id",
            0x1E0: "committed_tcb",
            0x1E8: "firmware",
            0x1EC: "committed_firmware",
            0x1F0: "launch_tcb",
        }.items():
            body[place : place + len(values[key])] = values[key]
        if sign:
            r, s = decode_dss_signature(self.key.sign(bytes(body[:0x2A0]), ec.ECDSA(SHA384())))
            body[0x2A0:0x2E8] = r.to_bytes(72, "little")
            body[0x2E8:0x330] = s.to_bytes(72, "little")
        return bytes(body)

    def revocation_list(
        self,
        *revoked: int,
        signer: str = "ark",
        made: datetime = AT - timedelta(days=1),
        due: datetime = AT + timedelta(days=1),
    ) -> bytes:
        builder = x509.CertificateRevocationListBuilder().issuer_name(name(self.ark_name))
        builder = builder.last_update(made).next_update(due)
        for serial in revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(made).build()
            builder = builder.add_revoked_certificate(entry)
        signed = builder.sign(rsa_key(signer), SHA384(), rsa_padding=PSS(MGF1(SHA384()), 48))
        return signed.public_bytes(Encoding.DER)


def table(entries: Mapping[UUID, bytes], *, little: bool = False) -> bytes:
    """A host's certificate table."""
    head = (len(entries) + 1) * 24
    heads, body = b"", b""
    for guid, blob in entries.items():
        heads += struct.pack("<16sII", guid.bytes_le if little else guid.bytes, head + len(body), len(blob))
        body += blob
    return heads + bytes(24) + body
