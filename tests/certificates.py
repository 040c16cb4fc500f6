"""Certificates for 127.0.0.1 that sign themselves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from cloister.config import GatewaySettings

Key = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey


def write_pair(
    folder: Path,
    name: str = "one",
    key: Key | None = None,
    *,
    from_day: int = -1,
    days: int = 30,
    password: bytes = b"",
) -> GatewaySettings:
    """Into cert.pem and key.pem of this folder, over what is there; settings that name them."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    begins = datetime.now(UTC) + timedelta(days=from_day)
    named = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(named)
        .issuer_name(named)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, None if isinstance(key, ed25519.Ed25519PrivateKey) else SHA256())
    )
    secret = BestAvailableEncryption(password) if password else NoEncryption()
    settings = settings_of(folder)
    assert settings.tls_cert and settings.tls_key
    settings.tls_cert.write_bytes(certificate.public_bytes(Encoding.PEM))
    settings.tls_key.touch(0o600)
    settings.tls_key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secret))
    return settings


def settings_of(folder: Path, **more: int) -> GatewaySettings:
    return GatewaySettings(port=0, tls_cert=folder / "cert.pem", tls_key=folder / "key.pem", **more)  # type: ignore[arg-type]
