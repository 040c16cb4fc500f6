"""A server's and vault host's shared key, and TLS credentials by HKDF-SHA256 (RFC 5869): one Ed25519 key (RFC 8032) per
role. A machine with the file could pose as either: so a vault host speaks with a fresh key, signed by its role's, to
which its evidence is bound."""

import secrets
from datetime import datetime
from hashlib import sha256
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cloister.errors import SetupError
from cloister.files import needed, read_private, write_whole
from cloister.messages.network_link import Credentials, Role

SECRET_BYTES = 32
_USAGE = {"server": ExtendedKeyUsageOID.CLIENT_AUTH, "vault_host": ExtendedKeyUsageOID.SERVER_AUTH}


def write_secret(path: Path) -> None:
    """An existing file is never overwritten."""
    with needed(f"The key cannot be written to {path}", "Name a new file."):
        write_whole(path, f"{secrets.token_hex(SECRET_BYTES)}\n".encode(), mode=0o600, fresh=True)


def read_secret(path: Path) -> bytes:
    """A key that others could have read is no secret, and is refused."""
    how = f"Make one with `cloister vault key new {path}`, and copy it to both machines."
    text = read_private(path, 4 * SECRET_BYTES, "key file", how)
    try:
        secret = bytes.fromhex(text.decode("ascii").strip())
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise SetupError(f"{path} does not hold a key of {SECRET_BYTES} bytes.", hint=how)
    return secret


def credentials_from(secret: bytes, role: Role) -> Credentials:
    """What a bridge of this role needs to prove itself and to know the other; without the shared key."""
    if len(secret) != SECRET_BYTES:
        raise SetupError(f"The shared key must have {SECRET_BYTES} bytes.")
    key = _role_key(secret, role)
    certificate = _certificate(key, role, key, 1, signs=role == "vault_host")
    if role == "vault_host":
        own = Ed25519PrivateKey.generate()
        key, certificate = own, _certificate(own, "vault_host life", key, x509.random_serial_number(), signs=False)
    other: Role = "vault_host" if role == "server" else "server"
    other_key = _role_key(secret, other)
    peer = _certificate(other_key, other, other_key, 1, signs=other == "vault_host")
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Credentials(role, private + certificate.public_bytes(Encoding.PEM), peer.public_bytes(Encoding.DER))


def certificate_hash(credentials: Credentials) -> bytes:
    """SHA-256 of the certificate that we show: what evidence is bound to, and what the other side pins."""
    own = x509.load_pem_x509_certificate(credentials.own)
    return sha256(own.public_bytes(Encoding.DER)).digest()


def _role_key(secret: bytes, role: Role) -> Ed25519PrivateKey:
    seed = HKDF(SHA256(), length=32, salt=None, info=f"cloister-link/3 {role}".encode()).derive(secret)
    return Ed25519PrivateKey.from_private_bytes(seed)


def _certificate(
    key: Ed25519PrivateKey, name: str, issuer: Ed25519PrivateKey, serial: int, *, signs: bool
) -> x509.Certificate:
    """Signed by its role's key; `signs`: it may sign one more."""
    role = name.split()[0]

    def named(who: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Cloister {who}")])

    return (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(role))
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(datetime(2000, 1, 1))
        .not_valid_after(datetime(9999, 12, 31, 23, 59, 59))  # no end (RFC 5280, 4.1.2.5): a new key file ends it
        .add_extension(x509.BasicConstraints(ca=signs, path_length=0 if signs else None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([_USAGE[role]]), critical=True)
        .sign(issuer, None)
    )
