"""Certificates and revocation lists of AMD's keys, read whole and at once: what is wrong with one shows here.

They come as PEM, DER, or the table a host hands its guests (GHCB specification): GUIDs with offsets, then the
certificates, as `auxblob` of the kernel's TSM reports holds it.

Whether one is trusted is not decided here.
"""

from __future__ import annotations

import hashlib
import struct
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TypeVar
from uuid import UUID

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from cloister.errors import EvidenceInvalid

_ENTRY = struct.Struct("<16sII")
_MAX_ENTRIES = 32
_END = bytes(16)
_KNOWN = (
    UUID("63da758d-e664-4564-adc5-f4b93be8accd"),  # VCEK
    UUID("a8074bc2-a25a-483e-aae6-39c045a0b8a1"),  # VLEK
    UUID("4ab7b379-bbac-4fe4-a02f-05aef327c782"),  # ASK or ASVK
    UUID("c0b406a4-a803-4952-9743-3fb6014cd0ae"),  # ARK
    UUID("92f81bc3-5811-4d3d-97ff-d19f88dc67ea"),  # CRL
)
# Hosts exist that write a GUID's first three fields the other way round; no two of these can be confused.
_WANTED = {guid.bytes for guid in _KNOWN} | {guid.bytes_le for guid in _KNOWN}


def looks_like_table(blob: bytes) -> bool:
    """It begins with a GUID that such tables have."""
    return blob[:16] in _WANTED


def read_table(blob: bytes) -> list[bytes]:
    """The certificates and revocation lists in a table; entries of kinds not known are passed over."""
    found: list[bytes] = []
    for place in range(_MAX_ENTRIES):
        if len(blob) < (place + 1) * _ENTRY.size:
            raise EvidenceInvalid("The certificate table has no end, or this is neither a certificate nor a table.")
        guid, offset, length = _ENTRY.unpack_from(blob, place * _ENTRY.size)
        if guid == _END:
            return found
        if offset + length > len(blob):
            raise EvidenceInvalid("The certificate table points outside itself.")
        if guid in _WANTED and length:
            found.append(blob[offset : offset + length])
    raise EvidenceInvalid(f"The certificate table has more than {_MAX_ENTRIES} entries.")


MAX_BUNDLE_BYTES = 1 << 18
MAX_CERTIFICATES = 32
AMD_EXTENSIONS = "1.3.6.1.4.1.3704.1."
_PADDING = b"\0 \r\n\t"

_Parsed = TypeVar("_Parsed")


@dataclass(frozen=True)
class Certificate:
    """What matters of a certificate."""

    der: bytes
    common_name: str
    subject: x509.Name
    issuer: x509.Name
    serial: int
    not_before: datetime
    not_after: datetime
    key: RSAPublicKey | EllipticCurvePublicKey
    may_sign: bool
    """It is a certificate authority's, and its key is for certificates."""
    extensions: Mapping[str, bytes]
    """AMD's own, by the end of their number: `3.1`."""
    signed_as_amd_does: bool
    source: x509.Certificate

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the public key."""
        return hashlib.sha256(self.key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()

    def issued_by(self, other: Certificate) -> bool:
        """Whether the other's key signed this."""
        if not other.may_sign or not self.signed_as_amd_does:
            return False
        try:
            self.source.verify_directly_issued_by(other.source)
        except (InvalidSignature, ValueError, TypeError, UnsupportedAlgorithm):
            return False
        return True

    def valid(self, at: datetime) -> bool:
        return self.not_before <= at <= self.not_after


@dataclass(frozen=True)
class RevocationList:
    """Serial numbers that an issuer took back."""

    issuer: x509.Name
    serials: frozenset[int]
    made: datetime
    next_due: datetime | None
    signed_as_amd_does: bool
    source: x509.CertificateRevocationList

    def issued_by(self, other: Certificate) -> bool:
        """Whether the other's key signed this."""
        if self.issuer != other.subject or not self.signed_as_amd_does or not isinstance(other.key, RSAPublicKey):
            return False
        return self.source.is_signature_valid(other.key)

    def current(self, at: datetime) -> bool:
        return self.made <= at and (self.next_due is None or at <= self.next_due)


@dataclass(frozen=True)
class Bundle:
    """All that was handed over, in no order that matters."""

    certificates: tuple[Certificate, ...]
    revocation_lists: tuple[RevocationList, ...]


def read_bundle(pieces: Sequence[bytes]) -> Bundle:
    """Read certificates and revocation lists out of PEM, DER or certificate tables."""
    if sum(map(len, pieces)) > MAX_BUNDLE_BYTES:
        raise EvidenceInvalid(f"Certificates may have at most {MAX_BUNDLE_BYTES} bytes in all.")
    ders = list(islice((der for piece in pieces for der in _ders(piece)), MAX_CERTIFICATES + 1))
    if len(ders) > MAX_CERTIFICATES:
        raise EvidenceInvalid(f"There may be at most {MAX_CERTIFICATES} certificates.")
    certificates, lists = [], []
    for der in dict.fromkeys(ders):
        read = _read_either(der)
        if isinstance(read, Certificate):
            certificates.append(read)
        else:
            lists.append(read)
    return Bundle(tuple(certificates), tuple(lists))


def _ders(piece: bytes, *, inside_table: bool = False) -> Iterator[bytes]:
    if not piece.strip(_PADDING):
        return
    if inside_table or not looks_like_table(piece):
        if b"-----BEGIN " in piece:
            yield from _pem(piece)
            return
        if piece[0] == 0x30:
            yield from _concatenated(piece)
            return
    if inside_table:
        raise EvidenceInvalid("An entry of the certificate table is not a certificate.")
    for entry in read_table(piece):
        yield from _ders(entry, inside_table=True)


def _pem(piece: bytes) -> Iterator[bytes]:
    certificates, lists = b"-----BEGIN CERTIFICATE-----" in piece, b"-----BEGIN X509 CRL-----" in piece
    if not certificates and not lists:
        raise EvidenceInvalid("A PEM file given as certificates holds none.")
    if certificates:
        for certificate in _parsed("certificate", lambda: x509.load_pem_x509_certificates(piece)):
            yield certificate.public_bytes(Encoding.DER)
    if lists:
        yield _parsed("revocation list", lambda: x509.load_pem_x509_crl(piece)).public_bytes(Encoding.DER)


def _concatenated(piece: bytes) -> Iterator[bytes]:
    """Split DER values that follow each other; padding after the last is dropped, as tables may have it."""
    while piece.strip(_PADDING):
        if len(piece) < 4 or piece[:2] != b"\x30\x82":
            raise EvidenceInvalid("This is not a DER certificate.")
        end = 4 + int.from_bytes(piece[2:4], "big")
        yield piece[:end]
        piece = piece[end:]


def _read_either(der: bytes) -> Certificate | RevocationList:
    try:
        return _parsed("certificate", lambda: _certificate(der))
    except EvidenceInvalid as wrong:
        try:
            return _parsed("revocation list", lambda: _revocation_list(der))
        except EvidenceInvalid:
            raise wrong from None


def _certificate(der: bytes) -> Certificate:
    found = x509.load_der_x509_certificate(der)
    key = found.public_key()
    if not isinstance(key, RSAPublicKey | EllipticCurvePublicKey):
        raise ValueError("key type")
    names = [str(name.value) for name in found.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
    extensions, authority, usage = {}, False, False
    for extension in found.extensions:
        value = extension.value
        if isinstance(value, x509.BasicConstraints):
            authority = value.ca
        elif isinstance(value, x509.KeyUsage):
            usage = value.key_cert_sign
        elif isinstance(value, x509.UnrecognizedExtension):
            if extension.critical:
                raise ValueError("critical extension")
            number = extension.oid.dotted_string
            if number.startswith(AMD_EXTENSIONS):
                extensions[number.removeprefix(AMD_EXTENSIONS)] = value.value
    return Certificate(
        der=der,
        common_name=names[0] if len(names) == 1 else "",
        subject=found.subject,
        issuer=found.issuer,
        serial=found.serial_number,
        not_before=found.not_valid_before_utc,
        not_after=found.not_valid_after_utc,
        key=key,
        may_sign=authority and usage,
        extensions=extensions,
        signed_as_amd_does=_signed_as_amd_does(found),
        source=found,
    )


def _revocation_list(der: bytes) -> RevocationList:
    found = x509.load_der_x509_crl(der)
    if any(extension.critical for extension in found.extensions):
        raise ValueError("critical extension")
    return RevocationList(
        issuer=found.issuer,
        serials=frozenset(entry.serial_number for entry in found),
        made=found.last_update_utc,
        next_due=found.next_update_utc,
        signed_as_amd_does=_signed_as_amd_does(found),
        source=found,
    )


def _signed_as_amd_does(found: x509.Certificate | x509.CertificateRevocationList) -> bool:
    """RSA-PSS with SHA-384."""
    pss = found.signature_algorithm_oid == x509.SignatureAlgorithmOID.RSASSA_PSS
    return pss and isinstance(found.signature_hash_algorithm, SHA384)


def _parsed(what: str, parse: Callable[[], _Parsed]) -> _Parsed:
    try:
        with _amd_serial_numbers():
            return parse()
    except Exception as wrong:  # the library has many errors for what is malformed, of no common family
        raise EvidenceInvalid(f"A {what} does not parse ({type(wrong).__name__}).") from None


@contextmanager
def _amd_serial_numbers() -> Iterator[None]:
    """Every VCEK has serial number 0, of which the library warns each time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
