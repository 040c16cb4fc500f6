"""Certificates and revocation lists of AMD's keys (PEM, DER, GHCB table), up to the root. Decides no trust."""

import struct
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar
from uuid import UUID

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding

from cloister.attest import chain
from cloister.attest.snp.report import Product, Report, Tcb, product_of_name
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


def read_table(blob: bytes) -> list[bytes]:
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
class Bundle:
    certificates: tuple[x509.Certificate, ...]
    revocation_lists: tuple[x509.CertificateRevocationList, ...]


def read_bundle(pieces: Sequence[bytes]) -> Bundle:
    if sum(map(len, pieces)) > MAX_BUNDLE_BYTES:
        raise EvidenceInvalid(f"Certificates may have at most {MAX_BUNDLE_BYTES} bytes in all.")
    ders = list(islice((der for piece in pieces for der in _ders(piece)), MAX_CERTIFICATES + 1))
    if len(ders) > MAX_CERTIFICATES:
        raise EvidenceInvalid(f"There may be at most {MAX_CERTIFICATES} certificates.")
    certificates, lists = [], []
    for der in dict.fromkeys(ders):
        read = _read_either(der)
        if isinstance(read, x509.Certificate):
            certificates.append(read)
        else:
            lists.append(read)
    return Bundle(tuple(certificates), tuple(lists))


def _ders(piece: bytes, *, inside_table: bool = False) -> Iterator[bytes]:
    if not piece.strip(_PADDING):
        return
    if inside_table or piece[:16] not in _WANTED:
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
    while piece.strip(_PADDING):
        if len(piece) < 4 or piece[:2] != b"\x30\x82":
            raise EvidenceInvalid("This is not a DER certificate.")
        end = 4 + int.from_bytes(piece[2:4], "big")
        yield piece[:end]
        piece = piece[end:]


def _read_either(der: bytes) -> x509.Certificate | x509.CertificateRevocationList:
    try:
        return _parsed("certificate", lambda: _certificate(der))
    except EvidenceInvalid as wrong:
        try:
            return _parsed("revocation list", lambda: _revocation_list(der))
        except EvidenceInvalid:
            raise wrong from None


def _certificate(der: bytes) -> x509.Certificate:
    """The library parses on access: access now, while errors are caught, all that is used later."""
    found = x509.load_der_x509_certificate(der)
    if not isinstance(found.public_key(), RSAPublicKey | EllipticCurvePublicKey):
        raise ValueError("key type")
    if any(one.critical and isinstance(one.value, x509.UnrecognizedExtension) for one in found.extensions):
        raise ValueError("critical extension")
    _ = found.subject, found.issuer, found.not_valid_before_utc, found.not_valid_after_utc, _signed_as_amd_does(found)
    return found


def _revocation_list(der: bytes) -> x509.CertificateRevocationList:
    found = x509.load_der_x509_crl(der)
    if any(extension.critical for extension in found.extensions):
        raise ValueError("critical extension")
    _ = found.issuer, found.last_update_utc, found.next_update_utc, _signed_as_amd_does(found)
    _ = [entry.serial_number for entry in found]
    return found


def _signed_as_amd_does(found: x509.Certificate | x509.CertificateRevocationList) -> bool:
    pss = found.signature_algorithm_oid == x509.SignatureAlgorithmOID.RSASSA_PSS
    return pss and isinstance(found.signature_hash_algorithm, SHA384)


def _parsed(what: str, parse: Callable[[], _Parsed]) -> _Parsed:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # every VCEK has serial number 0, of which the library warns each time
            return parse()
    except Exception as wrong:  # the library has many errors for what is malformed, of no common family
        raise EvidenceInvalid(f"A {what} does not parse ({type(wrong).__name__}).") from None


def issued(certificate: x509.Certificate, by: x509.Certificate) -> bool:
    return chain.is_authority(by) and _signed_as_amd_does(certificate) and chain.signed_directly(certificate, by)


def revocations_issued(listed: x509.CertificateRevocationList, by: x509.Certificate) -> bool:
    key = by.public_key()
    if listed.issuer != by.subject or not _signed_as_amd_does(listed) or not isinstance(key, RSAPublicKey):
        return False
    return listed.is_signature_valid(key) and chain.signature_is_whole(listed)


LEAF_NAMES = {"vcek": "SEV-VCEK", "vlek": "SEV-VLEK"}
_HWID_BYTES = (8, 64)  # Turin's chips have eight, those before sixty-four


@dataclass(frozen=True)
class Chain:
    leaf: x509.Certificate | None
    intermediate: x509.Certificate | None
    root: x509.Certificate | None


def find_chain(report: Report, certificates: Sequence[x509.Certificate], pinned: Mapping[Product, str]) -> Chain:
    """Pick those that belong together from certificates in any order; the right one where several fit."""
    kind = LEAF_NAMES.get(report.signing_key)
    leaf = _choose([one for one in certificates if chain.subject(one) == kind], lambda one: signed_by(report, one))
    issuers = [one for one in certificates if leaf and one.subject == leaf.issuer]
    intermediate = leaf and _choose(issuers, lambda one: issued(leaf, by=one))
    roots = [one for one in certificates if intermediate and one.subject == intermediate.issuer]
    root = intermediate and _choose(roots, lambda one: chain.key_fingerprint(one) in pinned.values())
    return Chain(leaf, intermediate, root)


def signed_by(report: Report, leaf: x509.Certificate) -> bool:
    """ECDSA over P-384 with SHA-384 of the report's first part."""
    return chain.ecdsa_signed(leaf.public_key(), SECP384R1, SHA384(), report.signature, report.signed, "little")


def authority_name(report: Report, product: Product) -> str:
    """The common name of the key between leaf and root: ASK for a VCEK, ASVK for a VLEK."""
    return f"SEV-VLEK-{product}" if report.signing_key == "vlek" else f"SEV-{product}"


def product_in(leaf: x509.Certificate) -> Product | None:
    return product_of_name(_text(_extension(leaf, "2")))


def provider_in(leaf: x509.Certificate) -> str:
    return _text(_extension(leaf, "5"))


def tcb_in(leaf: x509.Certificate, product: Product) -> Tcb | None:
    """The patch levels the key was derived for; None unless all are there."""
    parts = {"bootloader": "3.1", "tee": "3.2", "snp": "3.3", "microcode": "3.8"}
    if product == "Turin":
        parts["fmc"] = "3.9"
    levels = {name: _level(_extension(leaf, number)) for name, number in parts.items()}
    found = {name: level for name, level in levels.items() if level is not None}
    return Tcb(**found) if len(found) == len(parts) else None


def chip_in(leaf: x509.Certificate) -> bytes | None:
    """The chip's number: bare bytes in today's certificates, perhaps an OCTET STRING in others."""
    value = _extension(leaf, "4")
    if len(value) - 2 in _HWID_BYTES and value[:2] == bytes([0x04, len(value) - 2]):
        value = value[2:]
    return value if len(value) in _HWID_BYTES else None


def _choose(several: Sequence[x509.Certificate], right: Callable[[x509.Certificate], bool]) -> x509.Certificate | None:
    return next(filter(right, several), several[0] if several else None)


def _extension(leaf: x509.Certificate, number: str) -> bytes:
    """The value of one of AMD's own extensions, by the end of its number; empty if it is not there."""
    oid = x509.ObjectIdentifier(AMD_EXTENSIONS + number)
    values = [one.value for one in leaf.extensions if one.oid == oid]
    return values[0].value if values and isinstance(values[0], x509.UnrecognizedExtension) else b""


def _level(value: bytes) -> int | None:
    """A DER INTEGER from 0 to 255."""
    if len(value) == 3 and value[:2] == b"\x02\x01" and value[2] < 0x80:
        return value[2]
    if len(value) == 4 and value[:3] == b"\x02\x02\x00" and value[3] >= 0x80:
        return value[3]
    return None


def _text(value: bytes) -> str:
    """A short DER string (IA5, UTF-8 or printable); empty if it is none."""
    if len(value) < 2 or value[0] not in (0x16, 0x0C, 0x13) or value[1] >= 0x80 or value[1] != len(value) - 2:
        return ""
    return value[2:].decode("ascii", "replace")
