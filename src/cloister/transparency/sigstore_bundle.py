"""Sigstore bundles as another way to say that a release is public: signed by a known identity, logged in Rekor.

The `sigstore` package checks them offline: certificate chain, SCT, log inclusion and checkpoint, timestamps, signature.
It is imported only when there is a bundle. Accepted are bundles v0.1 to v0.3, over the manifest (message signature,
Rekor v1 or v2) or over an in-toto statement that names it as a subject (DSSE, from build platforms); each must carry an
inclusion proof. Not verified, as the package does not: witness cosignatures on Rekor's checkpoints.

A certificate may name its issuer twice: as bare text (1.3.6.1.4.1.57264.1.1, deprecated) and as a DER string (…1.8).
The package compares the first alone; here every one that is there must be the trusted one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from cloister.checks import Examination, Verdict
from cloister.errors import EvidenceInvalid, SetupError
from cloister.transparency.checkpoint import SigstoreTrust

if TYPE_CHECKING:
    from cryptography.x509 import Certificate
    from sigstore.verify.policy import VerificationPolicy

MAX_BUNDLE_BYTES = 262144
MAX_ROOT_BYTES = 1 << 20
_IN_TOTO = "application/vnd.in-toto+json"
_STATEMENTS = ("https://in-toto.io/Statement/v1", "https://in-toto.io/Statement/v0.1")


class _Shape(msgspec.Struct):
    envelope: Any = msgspec.field(default=None, name="dsseEnvelope")


class _Subject(msgspec.Struct):
    digest: dict[str, str]


class _InTotoStatement(msgspec.Struct):
    type: str = msgspec.field(name="_type")
    subject: list[_Subject]


def verify_sigstore(measurement: bytes, bundle: bytes, *, trust: SigstoreTrust) -> Verdict:
    """Whether the trusted identity signed the artifact with this SHA-256, publicly."""
    if len(bundle) > MAX_BUNDLE_BYTES:
        raise EvidenceInvalid(f"A Sigstore bundle may have at most {MAX_BUNDLE_BYTES} bytes.")
    if not trust.identity or not trust.issuer:
        raise SetupError("Sigstore needs both an identity and an issuer to trust.", hint="Anybody can get a signature.")
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
        raise SetupError(
            f"The Sigstore trusted root cannot be used ({type(wrong).__name__}).", hint="Fetch trusted_root.json anew."
        ) from None
    try:
        parsed = Bundle.from_json(bundle)
        in_envelope = msgspec.json.decode(bundle, type=_Shape).envelope is not None
    except Exception as wrong:
        raise EvidenceInvalid(f"The Sigstore bundle does not decode ({type(wrong).__name__}).") from None

    found = Examination("sigstore ")
    policy = signer_policy(trust)
    try:
        if in_envelope:
            kind, payload = verifier.verify_dsse(parsed, policy)
            named = _names(kind, payload, measurement)
        else:
            verifier.verify_artifact(Hashed(algorithm=HashAlgorithm.SHA2_256, digest=measurement), parsed, policy)
            named = True
    except SigstoreError as refusal:
        found.failed("bundle", _one_line(str(refusal)))
    except Exception as wrong:  # fails closed, whatever a malformed bundle makes the package stumble over
        found.failed("bundle", f"it could not be verified ({type(wrong).__name__})")
    else:
        found.check(
            "bundle",
            named,
            "what was signed does not name the release",
            found=f"signed by {trust.identity}",
        )
        found.claim("sigstore_identity", trust.identity)
        found.claim("sigstore_issuer", trust.issuer)
        found.claim("sigstore_pins", {name: value for name, value in trust.pins.items() if value})
    return found.verdict()


def signer_policy(trust: SigstoreTrust) -> VerificationPolicy:
    """Who may have signed: identity and issuer, and where the build came from, as far as the trust pins that."""
    from sigstore.verify import policy

    kinds = {
        "repository": policy.OIDCSourceRepositoryURI,
        "ref": policy.OIDCSourceRepositoryRef,
        "workflow": policy.OIDCBuildConfigURI,
    }
    pins = [kinds[name](value) for name, value in trust.pins.items() if value]
    return policy.AllOf([policy.Identity(identity=trust.identity), _Issuer(trust.issuer), *pins])


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


def _names(kind: str, payload: bytes, measurement: bytes) -> bool:
    """Whether a signed in-toto statement has a subject with this SHA-256."""
    if kind != _IN_TOTO:
        return False
    try:
        statement = msgspec.json.decode(payload, type=_InTotoStatement)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    wanted = measurement.hex()
    return statement.type in _STATEMENTS and any(each.digest.get("sha256") == wanted for each in statement.subject)


def _one_line(text: str) -> str:
    """A reason from the package on one line: it may quote the bundle."""
    return ascii(" ".join(text.split()))[1:-1][:300]
