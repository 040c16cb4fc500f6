"""A real report of a Milan chip with AMD's own certificates (see SOURCES.md of the vectors)."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cloister.attest.chain import key_fingerprint, subject
from cloister.attest.snp import SnpPolicy, verify_snp
from cloister.attest.snp.certificate import issued, read_bundle
from cloister.attest.snp.report import AMD_ROOTS, Product
from cloister.checks import Verdict
from cloister.errors import EvidenceInvalid

AT = datetime(2026, 1, 1, tzinfo=UTC)
LAUNCH = "b07af9620f3b839b47996422ddec6058338951d984e312115131ea82705eaf5b6bdf8a9ece31a5a608eb0cf2e4872b01"
# This guest was started in 2021 with debugging allowed, on firmware of that time; no revocation list came with it.
LENIENT = SnpPolicy(measurements=(LAUNCH,), allow_debug=True, allow_old_tcb=True, allow_missing_revocation_list=True)
REPORT_DATA = bytes([1, 2, 3, 4, 5]).ljust(64, b"\0")


@pytest.fixture(scope="module")
def vectors(shared: Path) -> Path:
    return shared / "vectors" / "sev-snp"


@pytest.fixture(scope="module")
def report(vectors: Path) -> bytes:
    return (vectors / "go-sev-guest_attestation.bin").read_bytes()


@pytest.fixture(scope="module")
def certificates(vectors: Path) -> list[bytes]:
    return [(vectors / f"go-sev-guest_{name}.testcer").read_bytes() for name in ("vcek", "milan")]


def verify(report: bytes, certificates: list[bytes], *, at: datetime = AT, policy: SnpPolicy = LENIENT) -> Verdict:
    return verify_snp(report, certificates, at=at, policy=policy, report_data=REPORT_DATA)


def broken(verdict: Verdict) -> list[str]:
    return [check.name for check in verdict.broken]


def test_the_real_report_verifies_up_to_amds_root(report: bytes, certificates: list[bytes]) -> None:
    verdict = verify(report, certificates)
    assert verdict.passed, verdict.broken
    assert verdict.claims["product"] == "Milan" and verdict.claims["firmware"] == "1.49.3"
    assert str(verdict.claims["measurement"]).startswith("b07af9620f3b839b")


def test_each_thing_wrong_with_it_has_a_name(report: bytes, certificates: list[bytes]) -> None:
    wrong = broken(verify(report, certificates, policy=SnpPolicy()))
    assert wrong == ["revocation", "debug", "shipped tcb floor", "launch"]
    let_go = [check.allowed_by for check in verify(report, certificates).checks if check.allowed_by]
    assert let_go == ["allow_missing_revocation_list", "allow_debug", "allow_old_tcb"]


def test_another_time_and_another_nonce_fail(report: bytes, certificates: list[bytes]) -> None:
    assert broken(verify(report, certificates, at=datetime(2030, 1, 1, tzinfo=UTC))) == ["certificate validity"]
    verdict = verify_snp(report, certificates, at=AT, policy=LENIENT, report_data=bytes(64))
    assert broken(verdict) == ["report data"]


@pytest.mark.parametrize("wrong", ["genoa", "turin_vcek", "milan_vlek"])
def test_another_chain_of_amds_does_not_do(vectors: Path, report: bytes, certificates: list[bytes], wrong: str) -> None:
    other = (vectors / f"go-sev-guest_ask_ark_{wrong}.pem").read_bytes()
    verdict = verify(report, [certificates[0], other])
    assert not verdict.passed and "certificate chain" in broken(verdict)


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.release)])
def test_flipped_bits_are_refused(report: bytes, certificates: list[bytes], every: int) -> None:
    for place in range(0, len(report), every):
        changed = bytearray(report)
        changed[place] ^= 1 << place % 8
        with suppress(EvidenceInvalid):
            assert not verify(bytes(changed), certificates).passed, place


@pytest.mark.slow
@pytest.mark.release
def test_every_flipped_bit_is_refused(report: bytes, certificates: list[bytes]) -> None:
    for bit in range(0x330 * 8):
        changed = bytearray(report)
        changed[bit // 8] ^= 1 << bit % 8
        with suppress(EvidenceInvalid):
            assert not verify(bytes(changed), certificates).passed, bit


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.release)])
def test_a_flipped_bit_in_the_leaf_certificate_is_refused(report: bytes, certificates: list[bytes], every: int) -> None:
    leaf, chain = certificates
    for place in range(0, len(leaf), every):
        changed = bytearray(leaf)
        changed[place] ^= 1 << place % 8
        with suppress(EvidenceInvalid):
            assert not verify(report, [bytes(changed), chain]).passed, place


@pytest.mark.parametrize(
    ("file", "product"),
    [
        ("ask_ark_milan.pem", "Milan"),
        ("ask_ark_milan_vlek.pem", "Milan"),
        ("ask_ark_genoa.pem", "Genoa"),
        ("ask_ark_turin_vcek.pem", "Turin"),
    ],
)
def test_the_pinned_keys_are_those_of_amds_roots(vectors: Path, file: str, product: Product) -> None:
    ask, ark = read_bundle([(vectors / f"go-sev-guest_{file}").read_bytes()]).certificates
    assert key_fingerprint(ark) == AMD_ROOTS[product] and subject(ark) == f"ARK-{product}"
    assert issued(ask, by=ark) and issued(ark, by=ark) and not issued(ark, by=ask)
