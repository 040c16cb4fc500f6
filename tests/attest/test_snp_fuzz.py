"""Whatever bytes come: a verdict or EvidenceInvalid, and never a pass for what was not signed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.attest.snp import SnpPolicy, verify_snp
from cloister.attest.snp.certificate import read_bundle, read_table
from cloister.attest.snp.report import unwrap_report
from cloister.errors import EvidenceInvalid
from tests.attest import snp_maker as maker
from tests.attest.snp_maker import AT, Chip, table
from tests.fuzz.harness import fuzz

CHIP = Chip("Genoa")
REPORT, CERTIFICATES, ROOTS = CHIP.report(), CHIP.certificates, CHIP.roots
POLICY = SnpPolicy(measurements=("aa" * 48,), allow_missing_revocation_list=True)


def passes(report: bytes, certificates: list[bytes]) -> bool:
    try:
        return verify_snp(report, certificates, at=AT, policy=POLICY, report_data=None, roots=ROOTS).passed
    except EvidenceInvalid:
        return False


@given(st.binary(min_size=1184, max_size=1184), st.sampled_from([2, 3, 4, 5]))
def test_random_reports_never_pass(body: bytes, version: int) -> None:
    assert not passes(version.to_bytes(4, "little") + body[4:], CERTIFICATES)


@given(st.integers(0, 0x32F), st.integers(1, 255))
def test_a_changed_byte_never_passes(place: int, change: int) -> None:
    report = bytearray(REPORT)
    report[place] ^= change
    assert passes(REPORT, CERTIFICATES) and not passes(bytes(report), CERTIFICATES)


@given(st.sampled_from([0, 1, 2]), st.integers(0, 5000), st.integers(1, 255))
def test_a_changed_certificate_never_passes(which: int, place: int, change: int) -> None:
    changed = bytearray(CERTIFICATES[which])
    changed[place % len(changed)] ^= change
    given_ones = [bytes(changed) if at == which else der for at, der in enumerate(CERTIFICATES)]
    assert not passes(REPORT, given_ones)


@given(st.binary(max_size=2000))
def test_bundles_and_tables_are_read_or_refused(data: bytes) -> None:
    for read in (read_table, lambda piece: read_bundle([piece])):
        try:
            read(data)
        except EvidenceInvalid as refused:
            assert refused.message


@given(st.dictionaries(st.sampled_from([maker.VCEK, maker.VLEK, maker.ASK, maker.ARK]), st.binary(min_size=1)))
def test_a_table_gives_back_what_was_put_in(entries: dict[object, bytes]) -> None:
    assert read_table(table(entries)) == list(entries.values())  # type: ignore[arg-type]


@given(st.binary(min_size=1, max_size=100))
def test_a_report_is_found_in_its_wrappings(rest: bytes) -> None:
    answer = bytes(4) + (1184).to_bytes(4, "little") + bytes(24)
    assert unwrap_report(REPORT + rest) == (REPORT, rest if any(rest) else b"")
    assert unwrap_report(answer + REPORT) == (REPORT, b"")
    assert unwrap_report(REPORT + bytes(2912)) == (REPORT, b"")


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("runs", [600, pytest.param(80000, marks=pytest.mark.release)])
def test_the_parsers_under_atheris(tmp_path: Path, runs: int) -> None:
    fuzz("snp_evidence.py", runs, 2048, tmp_path)
