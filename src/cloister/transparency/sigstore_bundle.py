"""Sigstore bundles (v0.1 to v0.3), verified offline by `sigstore`, without Rekor's witnesses. A certificate may name
its issuer twice (1.3.6.1.4.1.57264.1.1 and …1.8): both must be the trusted one."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from cloister.checks import Examination, Verdict
from cloister.errors import EvidenceInvalid, SetupError
from cloister.transparency.checkpoint import SigstoreTrust

if TYPE_CHECKING:
    from cryptography.x509 import Certificate
    from sigstore.verify.policy import VerificationPolicy

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
STATEMENT_TYPES: Final = ("https://in-toto.io/Statement/v1", "https://in-toto.io/Statement/v0.1")
PREDICATES: Final[dict[str, tuple[str, ...]]] = {
    "https://slsa.dev/provenance/v1": ("buildDefinition", "runDetails"),
    "https://slsa.dev/provenance/v0.2": ("builder", "buildType"),
}
"""The predicates that say a file was built, with the fields each must have (slsa.dev/spec/v1.0/provenance, …/v0.2)."""
MAX_SUBJECTS: Final = 1024


class _Statement(Struct, frozen=True, forbid_unknown_fields=True):
    type: str = msgspec.field(name="_type")
    subject: Annotated[tuple[msgspec.Raw, ...], Meta(max_length=MAX_SUBJECTS)]
    predicate_type: str = msgspec.field(name="predicateType")
    predicate: dict[str, Any] = {}


class _Subject(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """in-toto's ResourceDescriptor; of a subject, name and digest are needed."""

    name: Annotated[str, Meta(min_length=1, max_length=4096)]
    digest: dict[str, str]
    uri: str = ""
    content: str = ""
    download_location: str = ""
    media_type: str = ""
    annotations: dict[str, Any] = {}


def examine_statement(
    found: Examination, payload_type: str, payload: bytes, measurement: bytes, accepted: Collection[str] = PREDICATES
) -> None:
    """Adds the checks `statement`, `predicate` and `subject` on a statement that was signed over these bytes."""
    statement = _read(payload_type, payload)
    if isinstance(statement, str):
        found.failed("statement", statement)
        return
    found.passed("statement", statement.type)
    kind = statement.predicate_type
    missing = [name for name in PREDICATES.get(kind, ()) if name not in statement.predicate]
    known = kind in PREDICATES and kind in accepted
    other = f"{_shown(kind)} does not say that this is a release; accepted is {', '.join(sorted(accepted))}"
    found.check("predicate", known and not missing, f"it has no {', '.join(missing)}" if known else other, kind)
    wrong = _about_subjects(statement.subject, measurement.hex())
    found.check("subject", not wrong, wrong, "the release, once")


def _read(payload_type: str, payload: bytes) -> _Statement | str:
    if payload_type != PAYLOAD_TYPE:
        return f"what was signed is {_shown(payload_type)}, not an in-toto statement"
    try:
        statement = msgspec.json.decode(payload, type=_Statement)
    except msgspec.ValidationError as wrong:
        return f"it is not of in-toto's form: {_shown(str(wrong))}"
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return "it does not decode"
    if statement.type not in STATEMENT_TYPES:
        return f"its type {_shown(statement.type)} is not one of {', '.join(STATEMENT_TYPES)}"
    return statement


def _about_subjects(raw: tuple[msgspec.Raw, ...], wanted: str) -> str:
    try:
        subjects = [msgspec.json.decode(one, type=_Subject) for one in raw]
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return "a subject has not in-toto's form: a name, a digest, and no field that is unknown"
    for one in subjects:
        if "sha256" not in one.digest:
            return f"the subject {_shown(one.name)} has no SHA-256"
        if not re.fullmatch("[0-9a-f]{64}", one.digest["sha256"]):
            return f"the SHA-256 of the subject {_shown(one.name)} is not 64 small hexadecimal digits"
    if len({one.name for one in subjects}) != len(subjects):
        return "two subjects have one name"
    named = sum(one.digest["sha256"] == wanted for one in subjects)
    if named != 1:
        return "the release is not among the subjects" if not named else "two subjects are the release"
    return ""


def _shown(text: str) -> str:
    return ascii(" ".join(text.split()))[:120]


MAX_BUNDLE_BYTES = 262144
MAX_ROOT_BYTES = 1 << 20


class _Shape(Struct):
    envelope: Any = msgspec.field(default=None, name="dsseEnvelope")


def verify_sigstore(measurement: bytes, bundle: bytes, *, trust: SigstoreTrust) -> Verdict:
    if len(bundle) > MAX_BUNDLE_BYTES:
        raise EvidenceInvalid(f"A Sigstore bundle may have at most {MAX_BUNDLE_BYTES} bytes.")
    if not trust.identity or not trust.issuer:
        raise SetupError("Sigstore needs both an identity and an issuer to trust.", hint="Anyone can get one.")
    from sigstore.errors import Error as SigstoreError
    from sigstore.hashes import Hashed
    from sigstore.models import Bundle, TrustedRoot
    from sigstore.verify import Verifier
    from sigstore_models.common.v1 import HashAlgorithm
    from sigstore_models.trustroot.v1 import TrustedRoot as TrustedRootFile

    if len(trust.trusted_root) > MAX_ROOT_BYTES:
        raise SetupError(f"A Sigstore trusted root may have at most {MAX_ROOT_BYTES} bytes.")
    try:
        verifier = Verifier(trusted_root=TrustedRoot(TrustedRootFile.from_json(trust.trusted_root)))
    except Exception as wrong:  # the package's parsers raise what their own libraries raise
        hint = "Fetch trusted_root.json again."
        raise SetupError(f"The Sigstore trusted root cannot be used ({type(wrong).__name__}).", hint=hint) from None
    try:
        parsed = Bundle.from_json(bundle)
        in_envelope = msgspec.json.decode(bundle, type=_Shape).envelope is not None
    except Exception as wrong:
        raise EvidenceInvalid(f"The Sigstore bundle does not decode ({type(wrong).__name__}).") from None

    found = Examination("sigstore ")
    policy = signer_policy(trust)
    signed: tuple[str, bytes] | None = None
    try:
        if in_envelope:
            signed = verifier.verify_dsse(parsed, policy)
        else:
            verifier.verify_artifact(Hashed(algorithm=HashAlgorithm.SHA2_256, digest=measurement), parsed, policy)
    except SigstoreError as refusal:
        found.failed("bundle", _one_line(str(refusal)))
    except Exception as wrong:  # fails closed, whatever a malformed bundle makes the package stumble over
        found.failed("bundle", f"it could not be verified ({type(wrong).__name__})")
    else:
        found.passed("bundle", f"signed by {trust.identity}")
        examine_pins(found, parsed.signing_certificate, trust)
        if signed is not None:
            examine_statement(found, *signed, measurement, trust.predicates)
        pins = {name: value for name, value in trust.pins.items() if value}
        found.claim(sigstore_identity=trust.identity, sigstore_issuer=trust.issuer, sigstore_pins=pins)
    return found.verdict()


def signer_policy(trust: SigstoreTrust) -> VerificationPolicy:
    from sigstore.verify import policy

    return policy.AllOf([policy.Identity(identity=trust.identity), _Issuer(trust.issuer)])


def examine_pins(found: Examination, certificate: Certificate, trust: SigstoreTrust) -> None:
    """One check for each pin (Fulcio's extensions 1.3.6.1.4.1.57264.1.12, .14, .18); one that is absent fails."""
    from sigstore.verify import policy

    kinds = {
        "repository": policy.OIDCSourceRepositoryURI,
        "ref": policy.OIDCSourceRepositoryRef,
        "workflow": policy.OIDCBuildConfigURI,
    }
    for name, value in trust.pins.items():
        if not value:
            continue
        try:
            kinds[name](value).verify(certificate)
        except Exception as refusal:  # an absent extension, another value, or one that does not decode
            found.failed(name, _one_line(str(refusal)))
        else:
            found.passed(name, value)


class _Issuer:
    """A policy of the package's kind: all issuers a certificate names are this one, and it names one."""

    def __init__(self, issuer: str) -> None:
        self._issuer = issuer

    def verify(self, cert: Certificate) -> None:
        from sigstore.errors import VerificationError
        from sigstore.verify.policy import OIDCIssuer, OIDCIssuerV2

        there = {extension.oid for extension in cert.extensions}
        named = [kind for kind in (OIDCIssuer, OIDCIssuerV2) if kind.oid in there]
        if not named:
            raise VerificationError("Certificate does not name its OIDC issuer")
        for kind in named:
            kind(self._issuer).verify(cert)


def _one_line(text: str) -> str:
    """A reason from the package on one line: it may quote the bundle."""
    return ascii(" ".join(text.split()))[1:-1][:300]
