"""A chain of X.509 certificates (RFC 5280) to a root pinned by its key's fingerprint. Judges no revocation."""

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, SHA512, HashAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtensionOID

from cloister.checks import Examination
from cloister.errors import EvidenceInvalid

MAX_CHAIN_BYTES = 32768
MAX_CERTIFICATES = 8
UNDERSTOOD = frozenset({ExtensionOID.BASIC_CONSTRAINTS, ExtensionOID.KEY_USAGE})


def read_certificates(pem: bytes) -> tuple[x509.Certificate, ...]:
    """The certificates of a PEM bundle, each readable to its last extension, or EvidenceInvalid."""
    if len(pem) > MAX_CHAIN_BYTES:
        raise EvidenceInvalid(f"A certificate chain may have at most {MAX_CHAIN_BYTES} bytes.")
    try:
        certificates = tuple(x509.load_pem_x509_certificates(pem))
        for one in certificates:  # the library parses on access: access now, while errors are caught, what is needed
            _ = one.subject, one.issuer, one.not_valid_before_utc, one.not_valid_after_utc
            _ = one.extensions, one.public_key(), one.signature_hash_algorithm, one.signature
    except Exception as wrong:  # the library has more ways to refuse a certificate than it names
        raise EvidenceInvalid(f"The certificate chain does not decode ({type(wrong).__name__}).") from None
    if not _is_canonical(pem, certificates):
        raise EvidenceInvalid("The certificate chain has more or other text than its certificates.")
    if len(certificates) > MAX_CERTIFICATES:
        raise EvidenceInvalid(f"A certificate chain may have at most {MAX_CERTIFICATES} certificates.")
    return certificates


def _is_canonical(pem: bytes, certificates: Sequence[x509.Certificate]) -> bool:
    """Whether this is the certificates in PEM and nothing else: no byte stays unchecked."""
    rest = pem.replace(b"\r\n", b"\n")
    for certificate in certificates:
        before, _, rest = rest.partition(certificate.public_bytes(Encoding.PEM).strip())
        if before.strip(b" \t\n"):
            return False
    return not rest.strip(b" \t\n\0")


def ecdsa_signed(
    key: object,
    curve: type[ec.EllipticCurve],
    algorithm: HashAlgorithm,
    signature: bytes,
    data: bytes,
    order: Literal["big", "little"] = "big",
) -> bool:
    """Whether the key made this signature, two numbers of equal size; false for a key on another curve."""
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, curve):
        return False
    size = len(signature) // 2
    r, s = int.from_bytes(signature[:size], order), int.from_bytes(signature[size:], order)
    try:
        key.verify(encode_dss_signature(r, s), data, ec.ECDSA(algorithm))
    except InvalidSignature:
        return False
    return True


def key_fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of the certificate's public key (SubjectPublicKeyInfo), in hex: what a root is pinned by."""
    spki = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(spki).hexdigest()


def subject(certificate: x509.Certificate) -> str:
    """Its one common name."""
    names = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else "a certificate without a name"


def find_chain(
    certificates: Sequence[x509.Certificate], roots: frozenset[str], at: datetime, found: Examination
) -> tuple[x509.Certificate, ...] | None:
    """The chain, leaf first, root last, with the checks `certificate chain` and `certificate dates`; None if broken."""
    chain, broken = _link(certificates, roots)
    if not found.check("certificate chain", not broken, broken, " ← ".join(subject(one) for one in chain)):
        return None
    stale = [one for one in chain if not one.not_valid_before_utc <= at <= one.not_valid_after_utc]
    dates = (f"{subject(one)} is valid from {one.not_valid_before_utc} to {one.not_valid_after_utc}" for one in stale)
    found.check("certificate dates", not stale, "; ".join(dates))
    return chain


def _link(certificates: Sequence[x509.Certificate], roots: frozenset[str]) -> tuple[tuple[x509.Certificate, ...], str]:
    """The chain, and why it is broken; one of them is empty."""
    leaves = [one for one in certificates if not is_authority(one)]
    if len(leaves) != 1:
        return (), f"{len(leaves)} certificates are not of an authority where exactly one leaf should be"
    chain = leaves
    others = [one for one in certificates if one is not leaves[0]]
    while others:
        issuer = next((one for one in others if one.subject == chain[-1].issuer), None)
        if issuer is None:
            return (), f"the issuer of {subject(chain[-1])} is missing"
        others.remove(issuer)
        if problem := _issued(chain[-1], issuer, below=len(chain) - 1):
            return (), problem
        chain.append(issuer)
    root = chain[-1]
    if problem := _issued(root, root, below=len(chain) - 2):
        return (), f"the chain does not end in a root: {problem}"
    if key_fingerprint(root) not in roots:
        return (), f"the chain ends in {subject(root)}, whose key is not one that is trusted here"
    return tuple(chain), ""


def _issued(certificate: x509.Certificate, issuer: x509.Certificate, *, below: int) -> str:
    """Why this issuer cannot have issued this certificate, or nothing. `below`: authorities between it and the leaf."""
    if any(extension.critical and extension.oid not in UNDERSTOOD for extension in certificate.extensions):
        return f"{subject(certificate)} has a critical extension that is not understood"
    if not is_authority(issuer):
        return f"{subject(issuer)} is no authority"
    limit = issuer.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length
    if limit is not None and below > limit:
        return f"{subject(issuer)} may not issue for {below} authorities below it"
    if not isinstance(issuer.public_key(), ec.EllipticCurvePublicKey):
        return f"{subject(issuer)} does not sign with ECDSA"
    if not isinstance(certificate.signature_hash_algorithm, SHA256 | SHA384 | SHA512):
        return f"{subject(certificate)} is signed over a hash that is not trusted"
    return "" if signed_directly(certificate, issuer) else f"{subject(certificate)} is not signed by {subject(issuer)}"


def signed_directly(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return signature_is_whole(certificate)


def signature_is_whole(signed: x509.Certificate | x509.CertificateRevocationList) -> bool:
    """No signature covers the number of its unused bits, and the library ignores it: an attacker could change it."""
    encoded = signed.public_bytes(Encoding.DER)
    return encoded[-len(signed.signature) - 1] == 0


def is_authority(certificate: x509.Certificate) -> bool:
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    except x509.ExtensionNotFound:
        return False
    return constraints.ca and usage.key_cert_sign
