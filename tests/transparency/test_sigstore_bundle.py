"""Sigstore bundles: published ones verify offline, altered ones and other signers do not."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sigstore
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from msgspec.structs import replace
from sigstore.errors import VerificationError

from cloister.checks import Examination
from cloister.errors import EvidenceInvalid, SetupError
from cloister.transparency.checkpoint import ReleaseTrust, SigstoreTrust
from cloister.transparency.manifest import measurement
from cloister.transparency.proof import ReleaseProof, verify_release
from cloister.transparency.sigstore_bundle import MAX_BUNDLE_BYTES, examine_pins, signer_policy, verify_sigstore
from tests.transparency.node import NOON, manifest

IDENTITY = (
    "https://github.com/sigstore-conformance/extremely-dangerous-public-oidc-beacon/.github/workflows/"
    "extremely-dangerous-oidc-beacon.yml@refs/heads/main"
)
ISSUER = "https://token.actions.githubusercontent.com"
SIGNED = bytes.fromhex("a0cfc71271d6e278e57cd332ff957c3f7043fdda354c4cbb190a30d56efa01bf")
GOOD = ("happy-path-v0.3", "rekor2-happy-path", "rekor2-checkpoint-cosigned")
STORE = Path(sigstore.__file__).parent / "_store"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no network."""

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("a bundle was not verified offline")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def public_root() -> bytes:
    """The trusted root that comes with the package."""
    return next(STORE.glob("*tuf-repo-cdn.sigstore.dev/trusted_root.json")).read_bytes()


def vector(shared: Path, name: str) -> tuple[dict[str, Any], SigstoreTrust]:
    folder = shared / "vectors" / "sigstore" / name
    own = folder / "trusted_root.json"
    root = own.read_bytes() if own.exists() else public_root()
    return json.loads((folder / "bundle.sigstore.json").read_bytes()), SigstoreTrust(root, IDENTITY, ISSUER)


def refused(bundle: dict[str, Any], trust: SigstoreTrust, signed: bytes = SIGNED) -> bool:
    try:
        return not verify_sigstore(signed, json.dumps(bundle).encode(), trust=trust).passed
    except EvidenceInvalid:
        return True


@pytest.mark.parametrize("name", GOOD)
def test_published_bundles_verify(shared: Path, name: str) -> None:
    bundle, trust = vector(shared, name)
    verdict = verify_sigstore(SIGNED, json.dumps(bundle).encode(), trust=trust)
    assert verdict.passed and [check.name for check in verdict.checks] == ["sigstore bundle"]
    assert verdict.claims["sigstore_identity"] == IDENTITY


@pytest.mark.parametrize("name", ["invalid-inclusion-proof_fail", "rekor2-no-inclusion-proof_fail"])
def test_published_bundles_that_must_fail_do(shared: Path, name: str) -> None:
    assert refused(*vector(shared, name))


@pytest.mark.parametrize("name", GOOD)
def test_another_artifact_signer_or_root_is_refused(shared: Path, name: str) -> None:
    bundle, trust = vector(shared, name)
    assert refused(bundle, trust, measurement(manifest(1)))
    assert refused(bundle, SigstoreTrust(trust.trusted_root, IDENTITY + "x", ISSUER))
    assert refused(bundle, SigstoreTrust(trust.trusted_root, IDENTITY, ISSUER + "/"))
    other = vector(shared, GOOD[1] if name == GOOD[0] else GOOD[0])[1]
    assert refused(bundle, SigstoreTrust(other.trusted_root, IDENTITY, ISSUER))


REPOSITORY = "https://github.com/sigstore-conformance/extremely-dangerous-public-oidc-beacon"
PINS = {"repository": REPOSITORY, "ref": "refs/heads/main", "workflow": IDENTITY}


@pytest.mark.parametrize("name", GOOD)
def test_where_a_build_came_from_can_be_pinned(shared: Path, name: str) -> None:
    bundle, trust = vector(shared, name)
    verdict = verify_sigstore(SIGNED, json.dumps(bundle).encode(), trust=replace(trust, **PINS))
    assert verdict.passed and verdict.claims["sigstore_pins"] == PINS
    for pin, value in PINS.items():
        other = verify_sigstore(SIGNED, json.dumps(bundle).encode(), trust=replace(trust, **{pin: value + "x"}))
        assert [check.name for check in other.broken] == [f"sigstore {pin}"]


def certificate(v1: str | None, v2: str | None, **more: bytes) -> x509.Certificate:
    """A signer's certificate with these issuers in the old and the new extension, and more extensions by number."""
    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([]), datetime(2026, 1, 1, tzinfo=UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(7).not_valid_before(now).not_valid_after(now + timedelta(minutes=10))
    san = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(IDENTITY)])
    builder = builder.add_extension(san, critical=True)
    values = {} if v1 is None else {"1": v1.encode()}
    values |= {} if v2 is None else {"8": bytes([0x0C, len(v2)]) + v2.encode()}
    values |= {number.removeprefix("n"): value for number, value in more.items()}
    for number, value in values.items():
        oid = x509.ObjectIdentifier(f"1.3.6.1.4.1.57264.1.{number}")
        builder = builder.add_extension(x509.UnrecognizedExtension(oid, value), critical=False)
    return builder.sign(key, SHA256())


@pytest.mark.parametrize(
    ("v1", "v2", "accepted"),
    [
        (ISSUER, ISSUER, True),
        (ISSUER, None, True),
        (None, ISSUER, True),
        (ISSUER, "https://evil.example", False),
        ("https://evil.example", ISSUER, False),
        (None, "https://evil.example", False),
        (None, None, False),
    ],
)
def test_every_issuer_a_certificate_names_is_compared(v1: str | None, v2: str | None, accepted: bool) -> None:
    policy = signer_policy(SigstoreTrust(b"", IDENTITY, ISSUER))
    if accepted:
        policy.verify(certificate(v1, v2))
    else:
        with pytest.raises(VerificationError):
            policy.verify(certificate(v1, v2))


def utf8(text: str) -> bytes:
    return bytes([0x0C, len(text)]) + text.encode()


@pytest.mark.parametrize(
    ("extensions", "fails"),
    [
        ({"n12": utf8(REPOSITORY), "n14": utf8("refs/heads/main")}, []),
        ({"n12": utf8(REPOSITORY)}, ["ref"]),
        ({"n14": utf8("refs/heads/main")}, ["repository"]),
        ({"n12": utf8(REPOSITORY), "n14": utf8("refs/heads/other")}, ["ref"]),
        ({"n12": utf8(REPOSITORY), "n14": b"refs/heads/main"}, ["ref"]),
        ({"n12": utf8(REPOSITORY), "n6": b"refs/heads/main"}, ["ref"]),
        ({}, ["repository", "ref"]),
    ],
)
def test_a_pin_fails_where_the_certificate_does_not_name_it(extensions: dict[str, bytes], fails: list[str]) -> None:
    found = Examination()
    trust = SigstoreTrust(b"", IDENTITY, ISSUER, repository=REPOSITORY, ref="refs/heads/main")
    examine_pins(found, certificate(ISSUER, ISSUER, **extensions), trust)
    verdict = found.verdict()
    assert [check.name for check in verdict.broken] == fails and len(verdict.checks) == 2


def entry(bundle: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = bundle["verificationMaterial"]["tlogEntries"][0]
    return found


def flip_base64(holder: Any, key: str | int) -> None:
    data = bytearray(base64.b64decode(holder[key]))
    data[len(data) // 2] ^= 1
    holder[key] = base64.b64encode(data).decode()


ALTERATIONS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "signature": lambda bundle: flip_base64(bundle["messageSignature"], "signature"),
    "digest": lambda bundle: flip_base64(bundle["messageSignature"]["messageDigest"], "digest"),
    "certificate": lambda bundle: flip_base64(bundle["verificationMaterial"]["certificate"], "rawBytes"),
    "log entry": lambda bundle: flip_base64(entry(bundle), "canonicalizedBody"),
    "log root": lambda bundle: flip_base64(entry(bundle)["inclusionProof"], "rootHash"),
    "log path": lambda bundle: flip_base64(entry(bundle)["inclusionProof"]["hashes"], 0),
    "log place": lambda bundle: entry(bundle)["inclusionProof"].update(logIndex="1"),
    "log size": lambda bundle: entry(bundle)["inclusionProof"].update(treeSize="99999999"),
    "checkpoint": lambda bundle: entry(bundle)["inclusionProof"]["checkpoint"].update(
        envelope=entry(bundle)["inclusionProof"]["checkpoint"]["envelope"].replace("\n", "1\n", 2)
    ),
    "no log": lambda bundle: bundle["verificationMaterial"].update(tlogEntries=[]),
    "no signature": lambda bundle: bundle.pop("messageSignature"),
    "media type": lambda bundle: bundle.update(mediaType="application/json"),
}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("what", ALTERATIONS)
def test_an_altered_bundle_is_refused(shared: Path, name: str, what: str) -> None:
    bundle, trust = vector(shared, name)
    ALTERATIONS[what](bundle)
    assert refused(bundle, trust)


@pytest.mark.parametrize("wrong", [b"", b"{}", b"nonsense", b"\xff", b"[" * 50_000, b" " * (MAX_BUNDLE_BYTES + 1)])
def test_what_is_no_bundle_is_a_typed_error(wrong: bytes) -> None:
    with pytest.raises(EvidenceInvalid):
        verify_sigstore(SIGNED, wrong, trust=SigstoreTrust(public_root(), IDENTITY, ISSUER))


@pytest.mark.parametrize("root", [b"", b"{}", b"nonsense"])
def test_a_root_that_is_none_is_a_setup_error(root: bytes) -> None:
    with pytest.raises(SetupError):
        verify_sigstore(SIGNED, b"{}", trust=SigstoreTrust(root, IDENTITY, ISSUER))


def test_anybodys_signature_is_not_enough() -> None:
    for identity, issuer in (("", ISSUER), (IDENTITY, "")):
        with pytest.raises(SetupError):
            verify_sigstore(SIGNED, b"{}", trust=SigstoreTrust(public_root(), identity, issuer))


def statement(**changes: object) -> bytes:
    good = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "release.json", "digest": {"sha256": SIGNED.hex()}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {"buildDefinition": {}, "runDetails": {}},
    }
    return json.dumps({**good, **changes}).encode()


def test_a_statement_in_an_envelope_is_read_only_after_the_package_verified_it(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sigstore.verify import Verifier

    bundle, trust = vector(shared, GOOD[0])
    del bundle["messageSignature"]
    payload = base64.b64encode(statement()).decode()
    envelope = {"payload": payload, "payloadType": "application/vnd.in-toto+json"}
    bundle["dsseEnvelope"] = {**envelope, "signatures": [{"sig": base64.b64encode(bytes(70)).decode(), "keyid": ""}]}
    assert refused(bundle, trust)  # its signature is none
    vouched = ("application/vnd.in-toto+json", statement())
    monkeypatch.setattr(Verifier, "verify_dsse", lambda *_: vouched)
    assert verify_sigstore(SIGNED, json.dumps(bundle).encode(), trust=trust).passed
    assert refused(bundle, trust, bytes(32))
    assert refused(bundle, replace(trust, predicates=("https://slsa.dev/provenance/v0.2",)))
    scanned = statement(predicateType="https://cosign.sigstore.dev/attestation/vuln/v1")
    monkeypatch.setattr(Verifier, "verify_dsse", lambda *_: (vouched[0], scanned))
    verdict = verify_sigstore(SIGNED, json.dumps(bundle).encode(), trust=trust)
    assert [check.name for check in verdict.broken] == ["sigstore predicate"]


def test_a_release_may_be_proved_by_a_bundle_where_that_is_trusted(shared: Path) -> None:
    bundle, trust = vector(shared, GOOD[0])
    proof = ReleaseProof(manifest=manifest(1), sigstore=json.dumps(bundle).encode())
    verdict = verify_release(proof, measurement(manifest(1)), at=NOON, trusted=ReleaseTrust(sigstore=trust), seen=None)
    assert [check.name for check in verdict.broken] == ["sigstore bundle"]  # the bundle signs another artifact
