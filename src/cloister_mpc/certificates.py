"""One authority, one certificate per role (`cloister-mpc:party/1`), mutual TLS. Host names are not checked: a party is
its rank, and its fingerprint where settings give one."""

import hashlib
import re
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cloister.errors import SetupError, Unauthorized
from cloister.files import write_whole
from cloister_mpc.config import PARTIES

_URI = re.compile(r"cloister-mpc:(?:party/[0-2]|provider|client/[A-Za-z0-9._-]{1,64})")
_DAYS = 825
_Key = ec.EllipticCurvePrivateKey

DEFAULT_CLIENT = "clerk"
DEFAULT_CLIENT_KEY = f"keys/client-{DEFAULT_CLIENT}.key"
"""Beside the parties' settings. Keys on disk already have this name: it stays."""


@dataclass(frozen=True, slots=True)
class Role:
    """What a certificate allows its holder to be. `name`: a party's rank, a client's name."""

    kind: Literal["party", "provider", "client"]
    name: str = ""

    @property
    def uri(self) -> str:
        return f"cloister-mpc:{self.kind}/{self.name}" if self.name else f"cloister-mpc:{self.kind}"

    @property
    def file_name(self) -> str:
        return f"{self.kind}-{self.name}" if self.name else self.kind

    @classmethod
    def parse(cls, uri: str) -> Self | None:
        if not _URI.fullmatch(uri):
            return None
        kind, _, name = uri.partition(":")[2].partition("/")
        return cls(kind, name)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Credentials:
    certificate: Path
    key: Path

    @classmethod
    def beside(cls, key: Path) -> Self:
        return cls(key.with_suffix(".crt"), key)


@dataclass(frozen=True, slots=True)
class Keys:
    folder: Path

    def of(self, role: Role) -> Credentials:
        return Credentials.beside(self.folder / f"{role.file_name}.key")

    @property
    def provider(self) -> Credentials:
        return self.of(Role("provider"))

    def client(self, name: str = DEFAULT_CLIENT) -> Credentials:
        return self.of(Role("client", name))


def make_keys(folder: Path, clients: tuple[str, ...] = (DEFAULT_CLIENT,)) -> Keys:
    """A new authority, whose key lets in any peer not pinned by fingerprint, and certificates, in a new folder."""
    ranks = [Role("party", str(rank)) for rank in range(PARTIES)]
    roles = (*ranks, Role("provider"), *(Role("client", name) for name in clients))
    for role in roles:
        if Role.parse(role.uri) != role:
            raise SetupError(f"{role.name!r} is no name for a client.", hint="Letters, digits, '.', '_' and '-'.")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority = ec.generate_private_key(ec.SECP256R1())
    _sign(folder, "ca", authority, authority, x509.SubjectKeyIdentifier.from_public_key(authority.public_key()))
    for role in roles:
        _sign(
            folder,
            role.file_name,
            ec.generate_private_key(ec.SECP256R1()),
            authority,
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(role.uri)]),
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()),
        )
    return Keys(folder)


def fingerprint(certificate: Path) -> str:
    return x509.load_pem_x509_certificate(certificate.read_bytes()).fingerprint(hashes.SHA256()).hex()


def server_tls(authority: Path, own: Credentials) -> ssl.SSLContext:
    """For the listening side: refuses connections without a certificate of the authority."""
    return _tls(ssl.PROTOCOL_TLS_SERVER, authority, own)


def client_tls(authority: Path, own: Credentials) -> ssl.SSLContext:
    """For the connecting side; `require` then checks the peer's role and fingerprint."""
    return _tls(ssl.PROTOCOL_TLS_CLIENT, authority, own)


def role_of(connection: ssl.SSLObject | ssl.SSLSocket) -> Role:
    """The one role in the peer's certificate, which TLS has verified."""
    facts = connection.getpeercert() or {}
    alternatives: Any = facts.get("subjectAltName", ())
    names = [str(value) for kind, value in alternatives if kind == "URI"]
    role = Role.parse(names[0]) if len(names) == 1 else None
    if role is None:
        raise Unauthorized("A certificate without a role.", hint="`cloister mpc keys` makes them.")
    return role


def require(connection: ssl.SSLObject | ssl.SSLSocket, role: Role, pinned: str) -> None:
    """Raises unless the peer has this role and, where pinned, this very certificate."""
    if role_of(connection) != role:
        raise Unauthorized(f"The peer is not {role.uri}.", hint="Compare the addresses in the settings.")
    check_pin(connection, pinned)


def check_pin(connection: ssl.SSLObject | ssl.SSLSocket, pinned: str) -> None:
    der = connection.getpeercert(binary_form=True) or b""
    if pinned and hashlib.sha256(der).hexdigest() != pinned.lower():
        raise Unauthorized("A party's certificate is not the one that the settings pin by fingerprint.")


def _tls(side: int, authority: Path, own: Credentials) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(cafile=authority)
        context.load_cert_chain(own.certificate, own.key)
    except (OSError, ssl.SSLError) as reason:
        named = f"{own.certificate}, {own.key} and {authority}"
        raise SetupError(
            f"Keys cannot be used ({type(reason).__name__}): {named}.", hint="`cloister mpc keys FOLDER` makes them."
        ) from None
    return context


def _sign(folder: Path, name: str, key: _Key, authority: _Key, *extensions: x509.ExtensionType) -> None:
    """Writes NAME.key and NAME.crt; signed by itself, it is the authority's."""
    own, now = key is authority, datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_AUTHORITY if own else _name(name))
        .issuer_name(_AUTHORITY)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=_DAYS))
        .add_extension(x509.BasicConstraints(ca=own, path_length=0 if own else None), critical=True)
        .add_extension(_usage(certificates=own), critical=True)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    _write(folder, name, key, builder.sign(authority, hashes.SHA256()))


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


_AUTHORITY = _name("Cloister parties")


def _usage(*, certificates: bool) -> x509.KeyUsage:
    """Sign certificates, or else handshakes; nothing beside."""
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    unused = dict.fromkeys((*others, "crl_sign", "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(digital_signature=not certificates, key_cert_sign=certificates, **unused)


def _write(folder: Path, name: str, key: _Key, certificate: x509.Certificate) -> None:
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    for suffix, content, mode in (("key", secret, 0o600), ("crt", certificate.public_bytes(pem), 0o644)):
        path = folder / f"{name}.{suffix}"
        try:
            write_whole(path, content, mode=mode, fresh=True)
        except FileExistsError:
            raise SetupError(f"{path} exists already.", hint="Choose an empty folder.") from None
