"""OCSP responses that were fetched before (RFC 6960 §2.2, §4.2.2.2): one counts if the certificate's issuer signed it,
or a responder that this issuer named; without `nextUpdate` for a day. Nothing is fetched here."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509 import ocsp
from cryptography.x509.oid import ExtendedKeyUsageOID

from cloister.attest.chain import signed_directly, subject
from cloister.checks import Examination
from cloister.errors import EvidenceInvalid

MAX_RESPONSES = 512
MAX_RESPONSE_BYTES = 16384
WITHOUT_NEXT_UPDATE = timedelta(days=1)
Responses = Sequence[ocsp.OCSPResponse]
REVOKED = "the OCSP response says revoked"
_HASHES = (hashes.SHA1, hashes.SHA256, hashes.SHA384, hashes.SHA512)


def read_responses(data: Sequence[bytes]) -> tuple[ocsp.OCSPResponse, ...]:
    """The responses (DER) that answer at all, each about one certificate, or EvidenceInvalid."""
    if len(data) > MAX_RESPONSES or any(len(one) > MAX_RESPONSE_BYTES for one in data):
        raise EvidenceInvalid(f"At most {MAX_RESPONSES} OCSP responses of {MAX_RESPONSE_BYTES} bytes are read.")
    return tuple(_read(one) for one in data)


def _read(data: bytes) -> ocsp.OCSPResponse:
    try:
        response = ocsp.load_der_ocsp_response(data)
        if response.response_status is not ocsp.OCSPResponseStatus.SUCCESSFUL:
            raise EvidenceInvalid("An OCSP response says that the responder could not answer.", hint="Fetch it again.")
        # The library parses on access: access now, while errors are caught, all that is used later.
        _ = response.serial_number, response.issuer_key_hash, response.issuer_name_hash, response.hash_algorithm
        _ = response.certificate_status, response.this_update_utc, response.next_update_utc, response.certificates
        _ = response.signature, response.signature_hash_algorithm, response.tbs_response_bytes
        for one in response.certificates:
            _ = one.extensions, one.public_key(), one.subject, one.issuer, one.not_valid_after_utc
    except EvidenceInvalid:
        raise
    except Exception as wrong:  # the library has more ways to refuse a response than it names
        raise EvidenceInvalid(f"An OCSP response does not decode ({type(wrong).__name__}).") from None
    return response


def examine_revocation(
    chain: Sequence[x509.Certificate], responses: Responses, at: datetime, found: Examination, *, required: bool
) -> None:
    wrong, unanswered = [], []
    for certificate, issuer in pairwise(chain):
        problems = [_problem(one, issuer, at) for one in responses if _is_about(one, certificate, issuer)]
        if not problems:
            unanswered.append(subject(certificate))
        elif REVOKED in problems or all(problems):  # an old answer may lie beside a new one; "revoked" stays said
            wrong.append(f"{subject(certificate)}: {REVOKED if REVOKED in problems else problems[0]}")
    if wrong:
        found.failed("revocation", "; ".join(wrong))
    elif unanswered:
        found.skipped("revocation", f"no OCSP response was given for {', '.join(unanswered)}", required=required)
    else:
        found.passed("revocation", f"OCSP responses say good of {len(chain) - 1} certificates")


def _is_about(response: ocsp.OCSPResponse, certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    key = issuer.public_key()
    algorithm = response.hash_algorithm
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(algorithm, _HASHES):
        return False
    point = key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    name_hash = _digest(algorithm, issuer.subject.public_bytes())
    same_issuer = response.issuer_key_hash == _digest(algorithm, point) and response.issuer_name_hash == name_hash
    return same_issuer and response.serial_number == certificate.serial_number


def _digest(algorithm: hashes.HashAlgorithm, data: bytes) -> bytes:
    digest = hashes.Hash(algorithm)
    digest.update(data)
    return digest.finalize()


def _problem(response: ocsp.OCSPResponse, issuer: x509.Certificate, at: datetime) -> str:
    """Why this response is no reason to believe the certificate good, or nothing."""
    if not any(_signed(response, one) for one in (issuer, *_responders(response, issuer, at))):
        return "the OCSP response is not signed by the issuer, nor by a responder it named"
    if response.certificate_status is ocsp.OCSPCertStatus.REVOKED:
        return REVOKED
    if response.certificate_status is not ocsp.OCSPCertStatus.GOOD:
        return "the responder does not know it"
    until = response.next_update_utc or response.this_update_utc + WITHOUT_NEXT_UPDATE
    if not response.this_update_utc <= at <= until:
        return f"the OCSP response is for {response.this_update_utc} to {until}"
    return ""


def _responders(response: ocsp.OCSPResponse, issuer: x509.Certificate, at: datetime) -> list[x509.Certificate]:
    named = (one for one in response.certificates if signed_directly(one, issuer) and _may_answer(one))
    return [one for one in named if one.not_valid_before_utc <= at <= one.not_valid_after_utc]


def _may_answer(certificate: x509.Certificate) -> bool:
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return False
    return ExtendedKeyUsageOID.OCSP_SIGNING in usage


def _signed(response: ocsp.OCSPResponse, signer: x509.Certificate) -> bool:
    key, algorithm = signer.public_key(), response.signature_hash_algorithm
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(algorithm, _HASHES[1:]):
        return False
    try:
        key.verify(response.signature, response.tbs_response_bytes, ec.ECDSA(algorithm))
    except (InvalidSignature, UnsupportedAlgorithm):
        return False
    return True
