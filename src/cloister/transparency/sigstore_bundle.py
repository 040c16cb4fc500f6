"""Sigstore bundles (v0.1 to v0.3, with inclusion proof), verified offline by the package `sigstore`: over the manifest,
or over an in-toto statement (`provenance.py`). Not verified: witness cosignatures on Rekor's checkpoints. A certificate
may name its issuer twice (1.3.6.1.4.1.57264.1.1 and …1.8): both must be the trusted one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from cloister.checks import Examination, Verdict
from cloister.errors import EvidenceInvalid, SetupError
from cloister.transparency.checkpoint import SigstoreTrust
from cloister.transparency.provenance import examine_statement

if TYPE_CHECKING:
    from cryptography.x509 import Certificate
    from sigstore.verify.policy import VerificationPolicy

MAX_BUNDLE_BYTES = 262144
MAX_ROOT_BYTES = 1 << 20


class _Shape(msgspec.Struct):
    envelope: Any = msgspec.field(default=None, name="dsseEnvelope")


def verify_sigstore(measurement: bytes, bundle: bytes, *, trust: SigstoreTrust) -> Verdict:
    """Whether the trusted identity signed the artifact with this SHA-256, publicly."""
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
        raise SetupError(
            f"The Sigstore trusted root cannot be used ({type(wrong).__name__}).", hint="Fetch trusted_root.json again."
        ) from None
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
        found.claim("sigstore_identity", trust.identity)
        found.claim("sigstore_issuer", trust.issuer)
        found.claim("sigstore_pins", {name: value for name, value in trust.pins.items() if value})
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
