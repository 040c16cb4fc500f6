"""The software attester: the same flow as hardware's, refused unless the reader allows it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.attest.attester import Attester, SoftwareAttester, SoftwareReport, verify_software
from cloister.checks import Verdict
from cloister.errors import EvidenceInvalid, SetupError

AT = datetime(2026, 3, 1, tzinfo=UTC)
ASKED = bytes(range(64))


def attester() -> Attester:
    return SoftwareAttester(clock=AT.timestamp)


def verify(report: bytes, *, at: datetime = AT, allowed: bool = True, report_data: bytes | None = ASKED) -> Verdict:
    return verify_software(report, at=at, allowed=allowed, report_data=report_data)


def broken(verdict: Verdict) -> list[str]:
    assert not verdict.passed
    return [check.name for check in verdict.broken]


def test_it_passes_only_where_it_is_allowed() -> None:
    made = attester().attest(ASKED)
    assert made.tee == "none" and attester().tee == "none"
    assert verify(made.report).passed
    assert broken(verify(made.report, allowed=False)) == ["software tee"]
    assert msgspec.json.decode(made.report)["tee"] == "none"


def test_another_nonce_fails() -> None:
    report = attester().attest(ASKED).report
    assert broken(verify(report, report_data=bytes(64))) == ["report data"]
    assert broken(verify(report, report_data=b"")) == ["report data"]
    assert verify(report, report_data=None).passed


@pytest.mark.parametrize("later", [timedelta(days=2), timedelta(hours=-1)])
def test_a_report_of_another_time_fails(later: timedelta) -> None:
    assert broken(verify(attester().attest(ASKED).report, at=AT + later)) == ["report age"]


def test_nothing_in_it_can_be_changed() -> None:
    report = msgspec.json.decode(attester().attest(ASKED).report, type=SoftwareReport)
    other = msgspec.json.decode(attester().attest(bytes(64)).report, type=SoftwareReport)
    for changed in (
        msgspec.structs.replace(report, report_data=other.report_data),
        msgspec.structs.replace(report, made=report.made - 1),
        msgspec.structs.replace(report, key=other.key),
        msgspec.structs.replace(report, signature=other.signature),
    ):
        assert "report signature" in broken(verify(msgspec.json.encode(changed)))


def test_a_report_covers_64_bytes() -> None:
    with pytest.raises(SetupError, match="64 bytes"):
        attester().attest(b"short")


@given(st.one_of(st.binary(max_size=200), st.just(b"[" * 5000), st.just(b'{"tee":"tdx"}')))
def test_what_is_no_report_is_refused(data: bytes) -> None:
    with pytest.raises(EvidenceInvalid):
        verify(data)


@given(st.integers(0, 400), st.integers(0, 255))
def test_a_damaged_report_never_passes_for_another(place: int, value: int) -> None:
    report = bytearray(attester().attest(ASKED).report)
    report[place % len(report)] ^= value or 1
    try:
        read = msgspec.json.decode(bytes(report), type=SoftwareReport)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        with pytest.raises(EvidenceInvalid):
            verify(bytes(report))
        return
    assert verify(bytes(report)).passed == (read.report_data == ASKED and "report signature" not in _failed(report))


def _failed(report: bytearray) -> list[str]:
    return [check.name for check in verify(bytes(report)).broken]
