"""The firmware's event log, made here, and the register that its replay gives."""

from __future__ import annotations

import contextlib
import hashlib
import struct
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.errors import EvidenceInvalid, SetupError
from cloister.image.tdx import rtmr0_of

DIGESTS = b"\x11" * 48, b"\x22" * 48


def event(register: int, kind: int, digest: bytes, said: bytes) -> bytes:
    head = struct.pack("<IIIH", register + 1, kind, 1, 0x0C)
    return head + digest + struct.pack("<I", len(said)) + said


def ccel(*events: bytes, sizes: Sequence[tuple[int, int]] = ((0x0C, 48),), padding: bytes = b"\xff" * 64) -> bytes:
    spec = b"Spec ID Event03\0" + bytes(8) + struct.pack("<I", len(sizes))
    spec += b"".join(struct.pack("<HH", *one) for one in sizes) + b"\0"
    return struct.pack("<II20sI", 0, 3, bytes(20), len(spec)) + spec + b"".join(events) + padding


EVENTS = (
    event(0, 0x80000001, DIGESTS[0], b"variable"),
    event(1, 0x4, b"\x33" * 48, bytes(4)),
    event(0, 0x3, bytes(48), b"not measured"),
    event(0, 0xA, DIGESTS[1], b"ACPI DATA"),
)


@pytest.mark.parametrize("padding", [b"", b"\xff" * 4096, bytes(4096)])
def test_the_register_is_replayed_from_its_own_events_in_order(padding: bytes) -> None:
    register = bytes(48)
    for digest in DIGESTS:
        register = hashlib.sha384(register + digest).digest()
    assert rtmr0_of(ccel(*EVENTS, padding=padding)) == register
    other = ccel(EVENTS[3], *EVENTS[:3], padding=padding)
    assert rtmr0_of(other) != register


@pytest.mark.parametrize(
    "log",
    [
        b"",
        b"[]",
        ccel(sizes=[(0x0B, 32)]),
        ccel(event(4, 4, DIGESTS[0], b"")),
        ccel(event(-1, 4, DIGESTS[0], b"")),
        ccel(struct.pack("<IIIH", 1, 4, 1, 0x0B) + bytes(32) + bytes(4)),
        ccel(struct.pack("<III", 1, 4, 0) + bytes(4)),
        ccel(EVENTS[0])[:120] + b"\x01",
        ccel(EVENTS[0]).replace(b"Spec ID Event03", b"Spec ID Event02"),
    ],
)
def test_malformed_logs_are_refused(log: bytes) -> None:
    with pytest.raises(EvidenceInvalid):
        rtmr0_of(log)


def test_a_log_without_the_register_is_refused() -> None:
    with pytest.raises(SetupError, match="no event of RTMR0"):
        rtmr0_of(ccel(EVENTS[1]))


def test_a_long_log_is_read_in_one_pass() -> None:
    start = time.process_time()
    assert rtmr0_of(ccel(*(EVENTS[0],) * 8000, padding=b"\xff" * 100_000))
    assert time.process_time() - start < 5


@settings(max_examples=200)
@given(data=st.binary(max_size=64), at=st.integers(0, 400))
def test_no_bytes_make_it_fail_otherwise(data: bytes, at: int) -> None:
    log = ccel(*EVENTS)
    with contextlib.suppress(EvidenceInvalid, SetupError):
        rtmr0_of(log[:at] + data + log[at + len(data) :])
