"""OCSP responses handed in beside GPUs' reports, by responders of our own."""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.ocsp import OCSPCertStatus
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.attest.nvidia.ocsp import read_responses
from cloister.attest.nvidia.reports import GpuPolicy, References, verify_gpu_reports
from cloister.checks import Outcome, Verdict
from cloister.errors import EvidenceInvalid
from tests.fuzz.nvidia_made import NONCE, NOW, MadeGpu, MadeManifests, ocsp_answer, p384, swid_tag

GPU = MadeGpu()
_, MAKER, ROOT = GPU.certificates
GOOD = ocsp_answer(MAKER, ROOT, GPU.root)
SIGNER = MadeManifests()
DRIVER, VBIOS = swid_tag("590.12", {1: (b"\2" * 48,)}), swid_tag("96.00.A5.00.01", {0: (b"\1" * 48,)})
MANIFESTS = (SIGNER.sign(DRIVER), SIGNER.sign(VBIOS))


def verify(*ocsp: bytes, at: datetime = NOW, manifests: tuple[bytes, ...] = (), **policy: Any) -> Verdict:
    rules = GpuPolicy(**({"require_ocsp": True, "allow_unmeasured": True} | policy))
    known = References(manifests, ocsp, SIGNER.roots)
    return verify_gpu_reports(
        GPU.report(), NONCE, at=at, policy=rules, chain=GPU.chain, references=known, roots=GPU.roots
    )


def broken(verdict: Verdict) -> list[str]:
    assert not verdict.passed
    return [check.name for check in verdict.broken]


def reason(verdict: Verdict) -> str:
    return next(check.reason for check in verdict.checks if check.name == "gpu 0: revocation")


def test_a_good_answer_passes_and_none_is_shown() -> None:
    assert verify(GOOD).passed
    silent = verify()
    assert silent.incomplete and broken(silent) == ["gpu 0: revocation"]
    relaxed = verify(require_ocsp=False)
    assert relaxed.passed
    shown = next(check for check in relaxed.checks if check.name == "gpu 0: revocation")
    assert shown.outcome is Outcome.SKIP and "GH100 A01 GSP BROM" in shown.reason


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("status", [OCSPCertStatus.REVOKED, OCSPCertStatus.UNKNOWN])
def test_a_bad_answer_fails_asked_for_or_not(status: OCSPCertStatus, required: bool) -> None:
    bad = ocsp_answer(MAKER, ROOT, GPU.root, status=status)
    assert broken(verify(bad, require_ocsp=required)) == ["gpu 0: revocation"]


def test_an_old_answer_may_lie_beside_a_new_one_but_revoked_stays_said() -> None:
    old = ocsp_answer(MAKER, ROOT, GPU.root, made=NOW - timedelta(days=9), until=NOW - timedelta(days=8))
    assert verify(old, GOOD).passed
    assert "is for" in reason(verify(old))
    revoked = ocsp_answer(MAKER, ROOT, GPU.root, status=OCSPCertStatus.REVOKED)
    assert "revoked" in reason(verify(revoked, GOOD))


@pytest.mark.parametrize(
    ("made", "until", "passes"),
    [
        (NOW - timedelta(hours=1), NOW + timedelta(hours=1), True),
        (NOW + timedelta(hours=1), NOW + timedelta(hours=2), False),
        (NOW - timedelta(hours=2), NOW - timedelta(hours=1), False),
        (NOW - timedelta(hours=23), None, True),
        (NOW - timedelta(hours=25), None, False),
    ],
)
def test_answers_are_judged_at_the_time_given(made: datetime, until: datetime | None, passes: bool) -> None:
    assert verify(ocsp_answer(MAKER, ROOT, GPU.root, made=made, until=until)).passed is passes


def responder(key: Any, *, issuer_key: Any = GPU.root, usage: bool = True, **more: Any) -> x509.Certificate:
    extra = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.OCSP_SIGNING if usage else ExtendedKeyUsageOID.CLIENT_AUTH])
    made: x509.Certificate = GPU.certificate(
        "Made Responder", key, "Made Device Identity CA", issuer_key, ca=False, extra=extra, **more
    )
    return made


def test_a_responder_answers_only_if_the_issuer_named_it() -> None:
    key = p384()
    assert verify(ocsp_answer(MAKER, ROOT, key, responder=responder(key))).passed
    for wrong in (
        responder(key, usage=False),
        responder(key, issuer_key=p384()),
        responder(key, ends=NOW - timedelta(days=1)),
    ):
        assert "not signed" in reason(verify(ocsp_answer(MAKER, ROOT, key, responder=wrong)))
    assert "not signed" in reason(verify(ocsp_answer(MAKER, ROOT, key)))
    assert "not signed" in reason(verify(ocsp_answer(MAKER, ROOT, GPU.authority)))


def test_an_answer_about_another_certificate_is_none() -> None:
    other = MadeGpu(root=GPU.root)
    assert broken(verify(ocsp_answer(other.certificates[1], ROOT, GPU.root))) == ["gpu 0: revocation"]
    theirs = MadeGpu()
    assert broken(verify(ocsp_answer(MAKER, theirs.certificates[2], GPU.root))) == ["gpu 0: revocation"]


def test_a_manifests_certificates_need_answers_too() -> None:
    assert broken(verify(GOOD, manifests=MANIFESTS)) == ["manifest 0: revocation", "manifest 1: revocation"]
    signer, authority, root = SIGNER.certificates
    answers = (ocsp_answer(signer, authority, SIGNER.authority), ocsp_answer(authority, root, SIGNER.root))
    assert verify(GOOD, *answers, manifests=MANIFESTS).passed
    revoked = ocsp_answer(signer, authority, SIGNER.authority, status=OCSPCertStatus.REVOKED)
    wrong = broken(verify(GOOD, revoked, answers[1], manifests=MANIFESTS, require_ocsp=False))
    assert wrong == ["manifest 0: revocation", "manifest 1: revocation"]


@pytest.mark.parametrize("data", [b"", b"\0", b"\x30\x03\x0a\x01\x03", GOOD[:-1], GOOD + b"\0", b" " * 20_000])
def test_malformed_answers_are_named(data: bytes) -> None:
    with pytest.raises(EvidenceInvalid, match="OCSP"):
        verify(data)


@settings(max_examples=60)
@given(st.binary(min_size=1, max_size=32), st.integers(0, len(GOOD) - 1))
def test_no_bytes_make_it_fail_otherwise_and_none_that_matter_may_change(data: bytes, at: int) -> None:
    altered = GOOD[:at] + data + GOOD[at + len(data) :]
    with contextlib.suppress(EvidenceInvalid):
        read_responses([data])
    with contextlib.suppress(EvidenceInvalid):
        assert altered == GOOD or not verify(altered).passed
