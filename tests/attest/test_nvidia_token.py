"""The verdict on tokens of NVIDIA's attestation service, with a service of our own."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
from datetime import datetime, timedelta
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from cloister.attest.nvidia import GpuPolicy, verify_gpu_token
from cloister.attest.nvidia.token import read_jwks
from cloister.checks import Outcome, Verdict
from cloister.errors import EvidenceInvalid
from tests.fuzz.nvidia_made import NONCE, NOW, MadeService, gpu_claims, switch_claims

SERVICE = MadeService()
JWKS = SERVICE.jwks()
BUNDLE = SERVICE.bundle()
GPU = "x-nvidia-gpu-"


def verify(
    token: bytes = BUNDLE, nonce: bytes | None = NONCE, *, jwks: bytes = JWKS, at: datetime = NOW, **policy: Any
) -> Verdict:
    return verify_gpu_token(token, jwks, nonce, at=at, policy=GpuPolicy(**policy))


def broken(verdict: Verdict) -> list[str]:
    assert not verdict.passed
    return [check.name for check in verdict.broken]


@pytest.mark.parametrize("certificate", [False, True])
def test_a_bundle_in_order_passes(certificate: bool) -> None:
    verdict = verify(jwks=SERVICE.jwks(certificate=certificate), require_fwid=True)
    assert verdict.passed, verdict.broken
    (claims,) = verdict.claims["gpus"]
    assert claims["architecture"] == "HOPPER"
    assert claims["driver_version"] == "550.90.07"


def test_several_gpus_pass_and_each_must() -> None:
    two = {"GPU-0": {"ueid": "1"}, "GPU-1": {"ueid": "2", "hwmodel": "GB100 A01 GSP BROM"}}
    assert verify(SERVICE.bundle(two), min_gpus=2).passed
    assert broken(verify(SERVICE.bundle(two), min_gpus=3)) == ["gpu count"]
    assert broken(verify(SERVICE.bundle(two | {"GPU-1": {"ueid": "2", "dbgstat": "enabled"}}))) == ["GPU-1: debug"]
    assert broken(verify(SERVICE.bundle({"GPU-0": {}, "GPU-1": {}}))) == ["gpus distinct"]


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ({"secboot": False}, "secure boot"),
        ({"secboot": 1}, "secure boot"),
        ({"secboot": None}, "secure boot"),
        ({"dbgstat": "enabled"}, "debug"),
        ({"measres": "fail"}, "measurements"),
        ({"measres": True}, "measurements"),
        ({GPU + "arch-check": False}, "architecture match"),
        ({GPU + "attestation-report-nonce-match": False}, "report"),
        ({GPU + "attestation-report-signature-verified": False}, "report"),
        ({GPU + "attestation-report-parsed": False}, "report"),
        ({GPU + "driver-rim-signature-verified": False}, "reference manifests"),
        ({GPU + "vbios-rim-measurements-available": False}, "reference manifests"),
        ({GPU + "vbios-index-no-conflict": False}, "reference manifests"),
        ({GPU + "driver-rim-version-match": False}, "reference manifests"),
        ({GPU + "vbios-rim-version-match": False}, "reference manifests"),
        ({GPU + "attestation-report-cert-chain-fwid-match": False}, "firmware"),
        ({GPU + "attestation-report-cert-chain": None}, "certificates"),
        (
            {GPU + "driver-rim-cert-chain": {"x-nvidia-cert-status": "valid", "x-nvidia-cert-ocsp-status": "revoked"}},
            "certificates",
        ),
        (
            {GPU + "vbios-rim-cert-chain": {"x-nvidia-cert-status": "expired", "x-nvidia-cert-ocsp-status": "good"}},
            "certificates",
        ),
        ({"hwmodel": "GA100 A01"}, "architecture"),
        ({"hwmodel": None}, "architecture"),
        ({"eat_nonce": "00" * 32}, "nonce"),
        ({"eat_nonce": [NONCE.hex()]}, "nonce"),
        ({"iss": "https://elsewhere.example"}, "issuer"),
        ({"exp": int(NOW.timestamp())}, "dates"),
        ({"exp": None}, "dates"),
        ({"nbf": int(NOW.timestamp()) + 1}, "dates"),
        ({"iat": "soon"}, "dates"),
    ],
)
def test_a_gpu_that_is_not_in_order_is_refused(claims: dict[str, Any], name: str) -> None:
    assert broken(verify(SERVICE.bundle({"GPU-0": claims}))) == [f"GPU-0: {name}"]


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ({"x-nvidia-overall-att-result": False}, "overall result"),
        ({"x-nvidia-overall-att-result": "true"}, "overall result"),
        ({"eat_nonce": "00" * 32}, "nonce"),
        ({"iss": "https://elsewhere.example"}, "issuer"),
        ({"iss": ["https://nras.attestation.nvidia.com"]}, "issuer"),
        ({"exp": int(NOW.timestamp()) - 1}, "dates"),
        ({"nbf": int(NOW.timestamp()) + 1}, "dates"),
        ({"submods": None}, "GPU-0: digest"),
        ({"submods": {"GPU-0": ["DIGEST", ["SHA-256", "00" * 32]]}}, "GPU-0: digest"),
        ({"submods": {"GPU-0": ["DIGEST", ["MD5", "00" * 16]]}}, "GPU-0: digest"),
    ],
)
def test_an_overall_token_that_is_not_in_order_is_refused(claims: dict[str, Any], name: str) -> None:
    assert broken(verify(SERVICE.bundle(overall=claims))) == [name]


@pytest.mark.parametrize("name", sorted(gpu_claims()))
def test_a_claim_left_out_is_not_taken_for_granted(name: str) -> None:
    claims = {key: value for key, value in gpu_claims().items() if key != name}
    token = SERVICE.sign(SERVICE.common() | claims)
    digest = {"GPU-0": ["DIGEST", ["SHA-256", hashlib.sha256(token.encode()).hexdigest()]]}
    bundle = SERVICE.bundle({}, {"submods": digest}, tokens={"GPU-0": token})
    told_by_policy = {"driver-version": {"min_driver": "1"}, "vbios-version": {"vbios": ("1",)}}
    policy: dict[str, Any] = told_by_policy.get(name.removeprefix(GPU), {})
    assert not verify(bundle, require_fwid=True, **policy).passed


def test_version_2_says_validated_instead_of_a_status() -> None:
    older = {GPU + f"{part}-cert-chain": None for part in ("attestation-report", "driver-rim", "vbios-rim")}
    older |= {GPU + "attestation-report-cert-chain-validated": True, GPU + "driver-rim-cert-validated": True}
    assert broken(verify(SERVICE.bundle({"GPU-0": older}))) == ["GPU-0: certificates"]
    older[GPU + "vbios-rim-cert-validated"] = True
    assert verify(SERVICE.bundle({"GPU-0": older})).passed
    mute = {name: value for name, value in gpu_claims().items() if not name.endswith("version-match")}
    assert verify(SERVICE.bundle({"GPU-0": older}, in_order=mute)).passed
    mismatched = older | {GPU + "vbios-rim-version-match": False}
    assert broken(verify(SERVICE.bundle({"GPU-0": mismatched}, in_order=mute))) == ["GPU-0: reference manifests"]


def test_a_switch_passes_by_its_own_claims_where_the_policy_accepts_it() -> None:
    bundle = SERVICE.bundle({"SWITCH-0": {}}, in_order=switch_claims())
    verdict = verify(bundle, architectures=("LS10",), require_fwid=True, vbios=("96.10.55.00.01",), min_driver="999")
    assert verdict.passed, verdict.broken
    assert verdict.claims["gpus"][0]["architecture"] == "LS10"
    assert broken(verify(bundle)) == ["SWITCH-0: architecture", "gpu count"]


@pytest.mark.parametrize("name", sorted(switch_claims()))
def test_a_switch_that_is_not_in_order_is_refused(name: str) -> None:
    claims = {key: value for key, value in switch_claims().items() if key != name}
    policy: dict[str, Any] = {"vbios": ("96.10.55.00.01",)} if name.endswith("bios-version") else {}
    bundle = SERVICE.bundle({"SWITCH-0": {}}, in_order=claims)
    assert not verify(bundle, architectures=("LS10",), require_fwid=True, **policy).passed


def test_switches_do_not_count_as_gpus() -> None:
    bundle = SERVICE.bundle({"SWITCH-0": {}}, in_order=switch_claims())
    assert broken(verify(bundle, architectures=("HOPPER", "LS10"))) == ["gpu count"]
    both = SERVICE.bundle({"GPU-0": gpu_claims(), "SWITCH-0": switch_claims()}, in_order={"x": 1})
    assert verify(both, architectures=("HOPPER", "LS10")).passed


def test_versions_are_held_to_the_policy() -> None:
    assert verify(min_driver="550.90.07", vbios=("96.00.9F.00.01",)).passed
    assert broken(verify(min_driver="550.90.08")) == ["GPU-0: driver"]
    assert broken(verify(vbios=("96.00.9F.00.02",))) == ["GPU-0: vbios"]


def test_the_nonce_must_be_the_one_asked_with() -> None:
    assert broken(verify(nonce=bytes(32))) == ["nonce", "GPU-0: nonce"]
    skipped = next(check for check in verify(nonce=None).checks if check.name == "nonce")
    assert skipped.outcome is Outcome.SKIP and not skipped.required


def test_time_is_the_one_given_and_leeway_the_policys() -> None:
    late = NOW + timedelta(seconds=3601)
    assert broken(verify(at=late)) == ["dates", "GPU-0: dates"]
    relaxed = verify(at=late, leeway_seconds=5)
    assert relaxed.passed and {one.allowed_by for one in relaxed.checks if one.name.endswith("dates")} == {
        "leeway_seconds 5"
    }
    with pytest.raises(ValueError, match="zone"):
        verify(at=late.replace(tzinfo=None))


def test_other_issuers_can_be_accepted() -> None:
    bundle = SERVICE.bundle({"GPU-0": {"iss": "https://own"}}, {"iss": "https://own"})
    assert verify(bundle, issuers=("https://own",)).passed


def test_tokens_of_another_key_are_refused() -> None:
    other = MadeService()
    assert broken(verify(other.bundle())) == ["token signature", "GPU-0: token signature"]
    assert broken(verify(MadeService(kid="unknown").bundle())) == ["token signature", "GPU-0: token signature"]
    assert broken(verify(jwks=b'{"keys": []}')) == ["token signature", "GPU-0: token signature"]


def test_only_es384_counts() -> None:
    claims = SERVICE.common() | {"x-nvidia-overall-att-result": True}
    public = SERVICE.key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    p256 = ec.generate_private_key(ec.SECP256R1())
    for how in (
        {"key": None, "algorithm": "none"},
        {"key": public, "algorithm": "HS256"},
        {"key": public, "algorithm": "HS384"},
        {"key": p256, "algorithm": "ES256"},
    ):
        token = SERVICE.sign(claims, **how)
        assert "token signature" in broken(verify(token.encode()))
    named = SERVICE.sign(claims).split(".")
    header = base64.urlsafe_b64encode(b'{"alg":"none","kid":"made-key"}').rstrip(b"=").decode()
    assert "token signature" in broken(verify(f"{header}.{named[1]}.".encode()))


def test_keys_of_other_curves_are_not_used() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    jwk = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key())) | {"kid": "made-key"}
    assert read_jwks(json.dumps({"keys": [jwk]}).encode()) == {}


def test_a_bare_overall_token_is_incomplete() -> None:
    overall = json.loads(BUNDLE)[0][1].encode()
    verdict = verify(overall)
    assert verdict.incomplete
    assert broken(verdict) == ["gpu count"]


def test_tokens_cannot_be_swapped_added_or_left_out() -> None:
    (kind, overall), devices = json.loads(BUNDLE)
    other = json.loads(SERVICE.bundle({"GPU-0": {"ueid": "other"}}))[1]["GPU-0"]

    def bundle(tokens: dict[str, str]) -> bytes:
        return json.dumps([[kind, overall], tokens]).encode()

    assert broken(verify(bundle({"GPU-0": other}))) == ["GPU-0: digest"]
    assert broken(verify(bundle(devices | {"GPU-1": other}))) == ["GPU-1: digest"]
    two = json.loads(SERVICE.bundle({"GPU-0": {"ueid": "1"}, "GPU-1": {"ueid": "2"}}))
    del two[1]["GPU-1"]
    assert broken(verify(json.dumps(two).encode())) == ["gpu count"]


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.release)])
def test_every_sampled_character_of_a_token_matters(every: int) -> None:
    (kind, overall), devices = json.loads(BUNDLE)
    for at in range(0, len(overall), 3 * every):
        letter = "A" if overall[at] != "A" else "B"
        altered = overall[:at] + letter + overall[at + 1 :]
        with contextlib.suppress(EvidenceInvalid):
            assert not verify(json.dumps([[kind, altered], devices]).encode()).passed, at
    device = devices["GPU-0"]
    for at in range(0, len(device), 7 * every):
        letter = "A" if device[at] != "A" else "B"
        altered = device[:at] + letter + device[at + 1 :]
        with contextlib.suppress(EvidenceInvalid):
            assert not verify(json.dumps([[kind, overall], {"GPU-0": altered}]).encode()).passed, at


DEEP = base64.urlsafe_b64encode(b"[" * 50_000).rstrip(b"=")


@pytest.mark.parametrize(
    "token",
    [
        *(
            b"",
            b"abc",
            b"a.b.c",
            b"[]",
            b"[[]]",
            b'[["JWT"], {}]',
            b'[["CWT", "a.b.c"], {}]',
            b'[["JWT", "a.b.c"], {}]',
        ),
        *(b"[" * 100_000, DEEP + b".e30.", b"eyJhbGciOiJFUzM4NCJ9." + DEEP + b".", b"\xff.\xff.\xff", b" " * 300_000),
        b'[["JWT", "' + b"x" * 1000 + b'"], {"GPU-0": 1}]',
    ],
)
def test_a_malformed_token_is_named(token: bytes) -> None:
    with pytest.raises(EvidenceInvalid, match="token"):
        verify(token)


@pytest.mark.parametrize(
    "jwks",
    [
        *(b"", b"{}", b"[]", b"\xff", b"[" * 100_000, b" " * 300_000),
        b'{"keys": [{"kty": "EC", "kid": "a", "crv": "P-384", "x": "AAAA", "y": "AAAA"}]}',
        b'{"keys": [{"kty": "EC", "kid": "a", "crv": "P-384"}]}',
        b'{"keys": [{"kty": "EC", "kid": "a", "crv": "P-999", "x": "AAAA", "y": "AAAA"}]}',
        b'{"keys": [{"kty": "EC", "kid": "a", "x5c": ["AAAA"]}]}',
        json.dumps({"keys": json.loads(JWKS)["keys"] * 2}).encode(),
    ],
)
def test_malformed_keys_are_named(jwks: bytes) -> None:
    with pytest.raises(EvidenceInvalid, match="JWKS"):
        verify(jwks=jwks)


@given(st.binary(max_size=512), st.integers(0, len(BUNDLE)))
def test_no_bytes_make_it_fail_otherwise(data: bytes, at: int) -> None:
    for token in (data, BUNDLE[:at] + data + BUNDLE[at + len(data) :]):
        with contextlib.suppress(EvidenceInvalid):
            verify(token)
    with contextlib.suppress(EvidenceInvalid):
        verify(jwks=JWKS[: at % len(JWKS)] + data)


SMALL = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=16)
)
NESTED = st.recursive(
    SMALL, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner), max_leaves=6
)


@given(NESTED)
def test_no_claims_make_it_fail_otherwise(value: Any) -> None:
    wild = dict.fromkeys((*gpu_claims(), "iss", "eat_nonce", "exp", "nbf", "iat", "submods"), value)
    verdict = verify(SERVICE.bundle({"GPU-0": wild}, wild))
    assert not verdict.passed
    json.dumps(verdict.as_json())
