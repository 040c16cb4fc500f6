"""Self-made TDX platforms: a root of our own, quotes signed as Intel's quoting enclave signs, collateral for them."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
FMSPC = bytes.fromhex("90c06f000000")
QE_SIGNER = bytes.fromhex("dc9e2a7c6f948f17474e34a7fc43ed030f7c1563f1babddf6340c82e0e54a8c5")
VENDOR = bytes.fromhex("939a7233f79c4ca9940a0db3957f0607")
SEPT_VE_DISABLE = 1 << 28
SGX = "1.2.840.113741.1.13.1"


def name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def spki_fingerprint(key: ec.EllipticCurvePrivateKey) -> str:
    spki = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(spki).hexdigest()


def der(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    size = bytes([len(content)]) if len(content) < 128 else b"\x82" + len(content).to_bytes(2, "big")
    return bytes([tag]) + size + content


def oid(dotted: str) -> bytes:
    first, second, *rest = (int(part) for part in dotted.split("."))
    out = bytes([first * 40 + second])
    for number in rest:
        groups = [number & 0x7F]
        while number := number >> 7:
            groups.append(number & 0x7F | 0x80)
        out += bytes(reversed(groups))
    return der(6, out)


def sgx_extension(cpu_svn: bytes, pce_svn: int) -> bytes:
    """What Intel writes into a PCK certificate: PPID, TCB, PCE id, FMSPC, type."""
    tcb = [der(0x30, oid(f"{SGX}.2.{index + 1}"), der(2, bytes([svn]))) for index, svn in enumerate(cpu_svn)]
    tcb.append(der(0x30, oid(f"{SGX}.2.17"), der(2, bytes([pce_svn]))))
    tcb.append(der(0x30, oid(f"{SGX}.2.18"), der(4, cpu_svn)))
    return der(
        0x30,
        der(0x30, oid(f"{SGX}.1"), der(4, bytes(16))),
        der(0x30, oid(f"{SGX}.2"), der(0x30, *tcb)),
        der(0x30, oid(f"{SGX}.3"), der(4, bytes(2))),
        der(0x30, oid(f"{SGX}.4"), der(4, FMSPC)),
        der(0x30, oid(f"{SGX}.5"), der(0x0A, b"\0")),
    )


def raw_signature(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    r, s = decode_dss_signature(key.sign(data, ec.ECDSA(SHA256())))
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def raw_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)[1:]


def p256() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@dataclass
class MadePlatform:
    """One platform under one root; every key is its own."""

    root: ec.EllipticCurvePrivateKey = field(default_factory=p256)
    authority: ec.EllipticCurvePrivateKey = field(default_factory=p256)
    pck: ec.EllipticCurvePrivateKey = field(default_factory=p256)
    signer: ec.EllipticCurvePrivateKey = field(default_factory=p256)
    attestation: ec.EllipticCurvePrivateKey = field(default_factory=p256)
    cpu_svn: bytes = bytes([3] * 16)
    pck_is_pck: bool = True
    pck_ends: datetime = NOW + timedelta(days=700)

    @property
    def roots(self) -> frozenset[str]:
        return frozenset({spki_fingerprint(self.root)})

    def certificate(self, common: str, key, issuer: str, issuer_key, *, ca: bool, extra=None, ends=None):  # type: ignore[no-untyped-def]
        builder = (
            x509.CertificateBuilder()
            .subject_name(name(common))
            .issuer_name(name(issuer))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - timedelta(days=300))
            .not_valid_after(ends or NOW + timedelta(days=700))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
            .add_extension(
                x509.KeyUsage(
                    *(not ca, not ca, False, False, False, ca, ca, False, False),
                ),
                critical=True,
            )
        )
        if extra is not None:
            builder = builder.add_extension(extra, critical=False)
        return builder.sign(issuer_key, SHA256())

    @cached_property
    def root_certificate(self) -> x509.Certificate:
        return self.certificate("Made Root CA", self.root, "Made Root CA", self.root, ca=True)

    @cached_property
    def authority_certificate(self) -> x509.Certificate:
        return self.certificate("Intel SGX PCK Platform CA", self.authority, "Made Root CA", self.root, ca=True)

    @cached_property
    def pck_certificate(self) -> x509.Certificate:
        extra = x509.UnrecognizedExtension(x509.ObjectIdentifier(SGX), sgx_extension(self.cpu_svn, 13))
        return self.certificate(
            *("Made PCK", self.pck, "Intel SGX PCK Platform CA", self.authority),
            ca=False,
            extra=extra if self.pck_is_pck else None,
            ends=self.pck_ends,
        )

    @property
    def chain(self) -> bytes:
        certificates = (self.pck_certificate, self.authority_certificate, self.root_certificate)
        return b"".join(one.public_bytes(Encoding.PEM) for one in certificates)

    def quote(
        self,
        version: int = 4,
        body_type: int = 2,
        *,
        report_data: bytes = bytes(64),
        attributes: int = SEPT_VE_DISABLE,
        tee_tcb_svn: bytes = bytes([6, 1, 3]) + bytes(13),
        mrtd: bytes = b"\x11" * 48,
        mrsignerseam: bytes = bytes(48),
        mrservicetd: bytes = bytes(48),
        rtmrs: tuple[bytes, ...] = tuple(bytes([0x30 + index]) * 48 for index in range(4)),
        chain: bytes | None = None,
        cert_type: int = 5,
        vendor: bytes = VENDOR,
    ) -> bytes:
        body = struct.pack(
            "<16s48s48s8sQ8s48s48s48s48s48s48s48s48s64s",
            *(tee_tcb_svn, b"\x22" * 48, mrsignerseam, bytes(8), attributes, bytes.fromhex("e702060000000000")),
            *(mrtd, bytes(48), bytes(48), bytes(48)),
            *rtmrs,
            report_data,
        )
        if body_type >= 3:
            body += tee_tcb_svn + mrservicetd
        if body_type == 4:
            body += bytes(885 - 648)
        header = struct.pack("<HHI4s16s20s", version, 2, 0x81, bytes(4), vendor, bytes(20))
        described = struct.pack("<HI", body_type, len(body)) if version == 5 else b""
        signed = header + described + body
        auth = bytes(range(32))
        qe_data = hashlib.sha256(raw_key(self.attestation) + auth).digest() + bytes(32)
        qe = struct.pack(
            "<16sI28s16s32s32s32s96sHH60s64s",
            *(bytes(16), 0, bytes(28), bytes.fromhex("1500000000000000e700000000000000"), b"\x44" * 32, bytes(32)),
            *(QE_SIGNER, bytes(96), 2, 6, bytes(60), qe_data),
        )
        pem = self.chain if chain is None else chain
        certified = qe + raw_signature(self.pck, qe) + struct.pack("<H", 32) + auth
        certified += struct.pack("<HI", cert_type, len(pem)) + pem
        data = raw_signature(self.attestation, signed) + raw_key(self.attestation)
        data += struct.pack("<HI", 6, len(certified)) + certified
        return signed + struct.pack("<I", len(data)) + data

    def collateral(
        self,
        status: str = "UpToDate",
        advisories: tuple[str, ...] = (),
        *,
        issued: datetime = NOW - timedelta(days=5),
        ends: datetime = NOW + timedelta(days=25),
        floor: int = 2,
        revoked: bool = False,
        evaluation: int = 18,
    ) -> bytes:
        dates = {"issueDate": f"{issued:%Y-%m-%dT%H:%M:%SZ}", "nextUpdate": f"{ends:%Y-%m-%dT%H:%M:%SZ}"}
        level = {
            "tcb": {
                "sgxtcbcomponents": [{"svn": floor}] * 16,
                "pcesvn": 13,
                "tdxtcbcomponents": [{"svn": 5}, {"svn": 0}, {"svn": 3}, *[{"svn": 0}] * 13],
            },
            "tcbDate": "2024-03-13T00:00:00Z",
            "tcbStatus": status,
            "advisoryIDs": list(advisories),
        }
        module = {"mrsigner": "00" * 48, "attributes": "00" * 8, "attributesMask": "FF" * 8}
        identity = {"isvsvn": 3}
        tcb_info = json.dumps(
            {
                **{"id": "TDX", "version": 3, **dates, "fmspc": FMSPC.hex().upper(), "pceId": "0000", "tcbType": 0},
                "tcbEvaluationDataNumber": evaluation,
                "tdxModule": module,
                "tdxModuleIdentities": [
                    {
                        "id": "TDX_01",
                        **module,
                        "tcbLevels": [{"tcb": identity, "tcbDate": "2024-03-13T00:00:00Z", "tcbStatus": "UpToDate"}],
                    }
                ],
                "tcbLevels": [level],
            }
        )
        qe_identity = json.dumps(
            {
                **{"id": "TD_QE", "version": 2, **dates, "tcbEvaluationDataNumber": evaluation},
                **{"miscselect": "00" * 4, "miscselectMask": "FF" * 4},
                **{"attributes": "11" + "00" * 15, "attributesMask": "FB" + "FF" * 7 + "00" * 8},
                **{"mrsigner": QE_SIGNER.hex().upper(), "isvprodid": 2},
                "tcbLevels": [{"tcb": {"isvsvn": 4}, "tcbDate": "2024-03-13T00:00:00Z", "tcbStatus": "UpToDate"}],
            }
        )
        signer = self.certificate("Intel SGX TCB Signing", self.signer, "Made Root CA", self.root, ca=False)
        signing_chain = (signer.public_bytes(Encoding.PEM) + self.root_certificate.public_bytes(Encoding.PEM)).decode()
        return json.dumps(
            {
                "pck_crl_issuer_chain": (
                    self.authority_certificate.public_bytes(Encoding.PEM)
                    + self.root_certificate.public_bytes(Encoding.PEM)
                ).decode(),
                "root_ca_crl": self._crl("Made Root CA", self.root, None).hex(),
                "pck_crl": self._crl(
                    "Intel SGX PCK Platform CA", self.authority, self.pck_certificate if revoked else None
                ).hex(),
                "tcb_info_issuer_chain": signing_chain,
                "tcb_info": tcb_info,
                "tcb_info_signature": raw_signature(self.signer, tcb_info.encode()).hex(),
                "qe_identity_issuer_chain": signing_chain,
                "qe_identity": qe_identity,
                "qe_identity_signature": raw_signature(self.signer, qe_identity.encode()).hex(),
            }
        ).encode()

    def _crl(self, issuer: str, key: ec.EllipticCurvePrivateKey, revoked: x509.Certificate | None) -> bytes:
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(name(issuer))
            .last_update(NOW - timedelta(days=5))
            .next_update(NOW + timedelta(days=25))
            .add_extension(x509.CRLNumber(1), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        )
        if revoked is not None:
            entry = x509.RevokedCertificateBuilder().serial_number(revoked.serial_number)
            builder = builder.add_revoked_certificate(entry.revocation_date(NOW - timedelta(days=6)).build())
        return builder.sign(key, SHA256()).public_bytes(Encoding.DER)
