"""Self-made GPUs, manifests and OCSP answers, all under roots of our own."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.ocsp import OCSPCertStatus, OCSPResponderEncoding, OCSPResponseBuilder
from lxml import etree
from signxml import CanonicalizationMethod, SignatureConstructionMethod, XMLSigner

from tests.fuzz.tdx_made import der, name, spki_fingerprint

C14N_11 = CanonicalizationMethod.CANONICAL_XML_1_1
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
NONCE = bytes(range(32))
FWID = b"\x77" * 48


def p384() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def device_id(fwid: bytes) -> x509.UnrecognizedExtension:
    """Hopper's form: the firmware's digest at the end."""
    return x509.UnrecognizedExtension(x509.ObjectIdentifier("2.23.133.5.4.1"), der(0x30, der(2, b"\1"), der(4, fwid)))


def tcb_info(fwid: bytes) -> x509.UnrecognizedExtension:
    """Blackwell's form: a list of digests under tag 6."""
    digest = der(0x30, bytes.fromhex("0609608648016503040202"), der(4, fwid))
    value = der(0x30, der(0x80, b"NVIDIA"), der(0x81, b"GB100 A01 GSP"), der(0xA6, digest, digest), der(0x89, b"\0"))
    return x509.UnrecognizedExtension(x509.ObjectIdentifier("2.23.133.5.4.1.1"), value)


@dataclass
class MadeGpu:
    """One GPU with a chain of three: its leaf, its maker's authority, the root."""

    chip: str = "GH100"
    root: ec.EllipticCurvePrivateKey = field(default_factory=p384)
    authority: ec.EllipticCurvePrivateKey = field(default_factory=p384)
    key: Any = field(default_factory=p384)
    ends: datetime = NOW + timedelta(days=700)
    path_length: int | None = None

    @property
    def roots(self) -> frozenset[str]:
        return frozenset({spki_fingerprint(self.root)})

    def certificate(self, subject: str, key: Any, issuer: str, issuer_key: Any, *, ca: bool, **more: Any) -> Any:
        builder = (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name(issuer))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - timedelta(days=300))
            .not_valid_after(more.get("ends", NOW + timedelta(days=700)))
            .add_extension(x509.KeyUsage(not ca, *(False,) * 4, ca, *(False,) * 3), critical=True)
        )
        if ca:
            length = more.get("path_length")
            builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=length), critical=True)
        if "extra" in more:
            builder = builder.add_extension(more["extra"], critical=more.get("critical", False))
        return builder.sign(issuer_key, SHA384())

    @cached_property
    def certificates(self) -> tuple[x509.Certificate, ...]:
        extra = tcb_info(FWID) if self.chip.startswith("GB") else device_id(FWID)
        leaf, maker, root = f"{self.chip} A01 GSP FMC LF", f"{self.chip} A01 GSP BROM", "Made Device Identity CA"
        return (
            self.certificate(leaf, self.key, maker, self.authority, ca=False, extra=extra, ends=self.ends),
            self.certificate(maker, self.authority, root, self.root, ca=True),
            self.certificate(root, self.root, root, self.root, ca=True, path_length=self.path_length),
        )

    @property
    def chain(self) -> bytes:
        return b"".join(one.public_bytes(Encoding.PEM) for one in self.certificates)

    def report(self, nonce: bytes = NONCE, opaque: Mapping[int, bytes | None] | None = None, blocks: int = 3) -> bytes:
        fields = {6: bytes.fromhex("00a5009601000000"), 3: b"590.12\0", 14: bytes(4), 20: FWID} | dict(opaque or {})
        values = [
            bytes([index, 1]) + struct.pack("<HBH", 51, 1, 48) + bytes([index]) * 48 for index in range(1, blocks + 1)
        ]
        record = b"".join(values)
        data = b"".join(
            struct.pack("<HH", kind, len(value)) + value for kind, value in fields.items() if value is not None
        )
        signed = bytes([0x11, 0xE0, 1, 0xFF]) + nonce + b"\0"
        signed += bytes([0x11, 0x60, 0, 0, blocks]) + len(record).to_bytes(3, "little") + record
        signed += bytes(32) + struct.pack("<H", len(data)) + data
        r, s = decode_dss_signature(self.key.sign(signed, ec.ECDSA(SHA384())))
        return signed + r.to_bytes(48, "big") + s.to_bytes(48, "big")

    def entry(self, nonce: bytes = NONCE, **opaque: Any) -> dict[str, str]:
        """As NVIDIA's tools write one GPU's evidence."""
        return {
            "arch": "BLACKWELL" if self.chip.startswith("GB") else "HOPPER",
            "certificate": base64.b64encode(self.chain).decode(),
            "evidence": base64.b64encode(self.report(nonce, **opaque)).decode(),
            "nonce": nonce.hex(),
        }

    def evidence(self, nonce: bytes = NONCE) -> bytes:
        return json.dumps([self.entry(nonce)]).encode()


SWID = "http://standards.iso.org/iso/19770/-2/2015/schema.xsd"


def swid_tag(version: str, golden: Mapping[int, tuple[bytes, ...]], *, product: str = "GH100") -> str:
    """A manifest before it is signed, in the form of NVIDIA's: 64 measurements, those without values inactive."""
    resources = []
    for index in range(64):
        values = golden.get(index, (bytes(48),))
        hashes = " ".join(f'ns2:Hash{at}="{value.hex()}"' for at, value in enumerate(values))
        resources.append(
            f'<ns0:Resource type="Measurement" index="{index}" active="{index in golden}" '
            f'alternatives="{len(values)}" {hashes} name="Measurement_{index}" size="48"/>'
        )
    return (
        f'<SoftwareIdentity xmlns="{SWID}" xmlns:ns0="{SWID}" xmlns:ns2="http://www.w3.org/2001/04/xmlenc#sha384" '
        f'name="{product}" tagId="00" version="1.0" tagVersion="0">\n'
        f'<ns0:Entity name="NVIDIA Corporation" role="softwareCreator tagCreator"/>\n'
        f'<ns0:Meta colloquialVersion="{version}" edition="GPU" product="{product}"/>\n'
        f'<ns0:Payload xmlns:SHA384="http://www.w3.org/2001/04/xmlenc#sha384">{"".join(resources)}</ns0:Payload>\n'
        f"</SoftwareIdentity>"
    )


@dataclass
class MadeManifests:
    """Someone who signs manifests: a signer's certificate, an authority, the root."""

    root: ec.EllipticCurvePrivateKey = field(default_factory=p384)
    authority: ec.EllipticCurvePrivateKey = field(default_factory=p384)
    key: Any = field(default_factory=p384)
    ends: datetime = NOW + timedelta(days=700)

    @property
    def roots(self) -> frozenset[str]:
        return frozenset({spki_fingerprint(self.root)})

    @cached_property
    def certificates(self) -> tuple[x509.Certificate, ...]:
        make = MadeGpu().certificate
        return (
            make("Made RIM Signer", self.key, "Made RIM CA", self.authority, ca=False, ends=self.ends),
            make("Made RIM CA", self.authority, "Made RIM Root", self.root, ca=True),
            make("Made RIM Root", self.root, "Made RIM Root", self.root, ca=True),
        )

    def sign(self, tag: str, *, reference_uri: str | None = None, **how: Any) -> bytes:
        how = {"signature_algorithm": "ecdsa-sha384", "digest_algorithm": "sha384", "c14n_algorithm": C14N_11} | how
        signer = XMLSigner(method=SignatureConstructionMethod.enveloped, **how)
        chain = [one.public_bytes(Encoding.PEM) for one in self.certificates]
        tree, pem = etree.fromstring(tag), b"".join(chain).decode()
        return etree.tostring(signer.sign(tree, key=self.key, cert=pem, reference_uri=reference_uri))


def ocsp_answer(
    certificate: x509.Certificate,
    issuer: x509.Certificate,
    key: Any,
    *,
    responder: x509.Certificate | None = None,
    status: OCSPCertStatus = OCSPCertStatus.GOOD,
    made: datetime = NOW - timedelta(hours=1),
    until: datetime | None = NOW + timedelta(days=1),
) -> bytes:
    """What a responder says of one certificate, signed by `key`, with the `responder`'s certificate if it is given."""
    revoked = status is OCSPCertStatus.REVOKED
    builder = OCSPResponseBuilder().add_response(
        certificate, issuer, SHA384(), status, made, until, made if revoked else None, None
    )
    signer = responder or MadeGpu().certificate("any name", key, "any name", key, ca=False)
    builder = builder.responder_id(OCSPResponderEncoding.HASH, signer)
    if responder is not None:
        builder = builder.certificates([responder])
    return builder.sign(key, SHA384()).public_bytes(Encoding.DER)
