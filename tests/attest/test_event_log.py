"""Event logs in the forms of firmware (CCEL) and dstack, made here: their replay, and what they name."""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.attest.tdx import Launch, TdxPolicy, verify_tdx
from cloister.attest.tdx.event_log import Event, read_event_log, replay
from cloister.checks import Outcome, Verdict
from cloister.errors import EvidenceInvalid
from tests.fuzz.tdx_made import NOW, MadePlatform

PLATFORM = MadePlatform()
COLLATERAL = PLATFORM.collateral()
RUNTIME = 0x08000001
COMPOSE = bytes(range(32))


def sha384(data: bytes) -> bytes:
    return hashlib.sha384(data).digest()


def variable(name: str, value: bytes) -> bytes:
    return bytes(16) + struct.pack("<QQ", len(name), len(value)) + name.encode("utf-16-le") + value


def event2(register: int, kind: int, digest: bytes, said: bytes) -> bytes:
    head = struct.pack("<IIIH", register + 1, kind, 1, 0x0C)
    return head + digest + struct.pack("<I", len(said)) + said


def ccel(*events: bytes, sizes: Sequence[tuple[int, int]] = ((0x0C, 48),), padding: bytes = b"\xff" * 64) -> bytes:
    spec = b"Spec ID Event03\0" + bytes(8) + struct.pack("<I", len(sizes))
    spec += b"".join(struct.pack("<HH", *one) for one in sizes) + b"\0"
    return struct.pack("<II20sI", 0, 3, bytes(20), len(spec)) + spec + b"".join(events) + padding


SECURE_BOOT = variable("SecureBoot", b"\1")
COMMAND = b"linux /vmlinuz root=/dev/dm-0"
CCEL = ccel(
    event2(0, 0x80000001, sha384(SECURE_BOOT), SECURE_BOOT),
    event2(0, 0x80000002, sha384(b"\2\0"), variable("BootOrder", b"\2\0")),
    event2(0, 0xA, b"\x77" * 48, b"ACPI DATA"),
    event2(1, 0x3, bytes(48), b"not measured"),
    event2(1, 0x4, sha384(bytes(4)), bytes(4)),
    event2(2, 0xD, sha384(COMMAND), b"kernel_cmdline: " + COMMAND + b"\0"),
)


def runtime(name: str, payload: bytes = b"", *, version: int = 1, **changes: Any) -> dict[str, Any]:
    text = struct.pack("<I", RUNTIME) + f":{name}:".encode() + payload
    if version == 2:
        text = json.dumps({"name": name, "payload": payload.hex(), "type": RUNTIME}, separators=(",", ":")).encode()
    entry = {"imr": 3, "event_type": RUNTIME, "digest": sha384(text).hex(), "event": name}
    return entry | {"event_payload": payload.hex()} | changes


DSTACK = [
    {"imr": 1, "event_type": 4, "digest": sha384(bytes(4)).hex(), "event": "", "event_payload": "00000000"},
    runtime("app-id", b"\1" * 20),
    runtime("compose-hash", COMPOSE),
    runtime("system-ready"),
]


def verify(log: bytes | list[Any] | None, *, truth: bytes | list[Any] | None = None, **policy: Any) -> Verdict:
    """The log beside a quote whose registers come of `truth`: the log itself, unless another is given."""
    log, truth = (json.dumps(one).encode() if isinstance(one, list) else one for one in (log, truth or log))
    rtmrs = replay(read_event_log(truth)) if truth else (bytes(48),) * 4
    launch = Launch(mrtd="11" * 48, **{f"rtmr{index}": rtmrs[index].hex() for index in range(3)})
    return verify_tdx(
        PLATFORM.quote(rtmrs=rtmrs),
        COLLATERAL,
        at=NOW,
        policy=TdxPolicy(launches=(launch,), **policy),
        report_data=None,
        event_log=log,
        roots=PLATFORM.roots,
    )


def broken(verdict: Verdict) -> list[str]:
    assert not verdict.passed
    return [check.name for check in verdict.broken]


@pytest.mark.parametrize("padding", [b"", b"\xff" * 100, bytes(100)])
def test_a_firmwares_log_is_replayed_and_named(padding: bytes) -> None:
    log = CCEL.rstrip(b"\xff") + padding
    events = read_event_log(log)
    first = sha384(bytes(48) + sha384(SECURE_BOOT))
    assert replay(events[:1]) == (first, bytes(48), bytes(48), bytes(48))
    assert [(one.register, one.covered, one.name, one.value, one.hint) for one in events] == [
        (0, True, "SecureBoot", b"\1", ""),
        (0, True, "", b"\2\0", "BootOrder"),
        (0, False, "", b"", "ACPI DATA"),
        (1, True, "", bytes(4), ""),
        (2, True, "", COMMAND, "kernel_cmdline"),
    ]
    verdict = verify(log)
    assert verdict.passed, verdict.broken
    assert verdict.claims["events"][4]["value"] == COMMAND.decode()
    assert "SecureBoot" in next(check.reason for check in verdict.checks if check.name == "rtmr0 log")


def test_dstacks_log_is_replayed_and_its_compose_hash_named() -> None:
    accepted = {"compose-hash": ("ff", COMPOSE.hex().upper()), "system-ready": ("",)}
    verdict = verify(DSTACK, runtime_events=accepted)
    assert verdict.passed, verdict.broken
    assert verdict.claims["events"][2] == {
        **{"rtmr": 3, "kind": "runtime", "digest": DSTACK[2]["digest"], "name": "compose-hash"},
        **{"value": COMPOSE.hex(), "hint": ""},
    }
    assert broken(verify(DSTACK, runtime_events={"compose-hash": ("ff" * 32,)})) == ["event compose-hash"]
    assert broken(verify(DSTACK, runtime_events={"os-image-hash": ("ff" * 32,)})) == ["event os-image-hash"]
    second = [runtime("compose-hash", COMPOSE, version=2)]
    assert verify(second, runtime_events=accepted | {"system-ready": ("",)}).broken[0].name == "event system-ready"
    assert verify(second, runtime_events={"compose-hash": (COMPOSE.hex(),)}).passed


def test_runtime_events_without_a_digest_are_hashed_here() -> None:
    bare = [DSTACK[0], *({**one, "digest": ""} for one in DSTACK[1:])]
    assert verify(bare, truth=DSTACK, runtime_events={"compose-hash": (COMPOSE.hex(),)}).passed
    assert broken(verify([{**bare[1], "event_payload": "02"}, *bare[2:]], truth=DSTACK[1:])) == ["rtmr3 log"]


@pytest.mark.parametrize(
    ("log", "register"),
    [
        (DSTACK[:3], "rtmr3 log"),
        ([DSTACK[0], DSTACK[2], DSTACK[1], DSTACK[3]], "rtmr3 log"),
        ([*DSTACK, runtime("more")], "rtmr3 log"),
        ([DSTACK[0] | {"digest": "00" * 48}, *DSTACK[1:]], "rtmr1 log"),
        ([DSTACK[0] | {"imr": 2}, *DSTACK[1:]], "rtmr2 log"),
    ],
)
def test_a_log_that_does_not_give_the_registers_is_refused(log: list[Any], register: str) -> None:
    assert register in broken(verify(log, truth=DSTACK))


def test_names_are_shown_in_plain_letters() -> None:
    verdict = verify([runtime("\x1b[2J")])
    assert verdict.passed
    assert next(check.reason for check in verdict.checks if check.name == "rtmr3 log") == "1 events:  [2J"


def test_a_register_the_log_says_nothing_of_is_shown() -> None:
    verdict = verify(DSTACK[:1], truth=DSTACK)
    assert verdict.passed
    shown = next(check for check in verdict.checks if check.name == "rtmr3 log")
    assert shown.outcome is Outcome.SKIP
    silent = verify(DSTACK[:1], truth=DSTACK, runtime_events={"compose-hash": (COMPOSE.hex(),)})
    assert broken(silent) == ["event compose-hash"]
    assert verify(None, truth=DSTACK, runtime_events={"compose-hash": (COMPOSE.hex(),)}).incomplete


EVIL = runtime("compose-hash", b"\xee" * 32)


def test_an_event_measured_later_does_not_stand_for_the_one_at_boot() -> None:
    """What runs in the TD may extend RTMR3, and the log is the host's to write."""
    measured = [*DSTACK, EVIL]
    wanted = {"compose-hash": ("ee" * 32,)}
    assert broken(verify(measured, runtime_events=wanted)) == ["event compose-hash"]
    preimage = struct.pack("<I", RUNTIME) + b":compose-hash:" + COMPOSE
    hidden = (
        DSTACK[2] | {"event": "", "event_payload": ""},
        DSTACK[2] | {"event_type": 5, "event": "", "event_payload": ""},
        DSTACK[2] | {"event_type": 5, "event": "", "event_payload": preimage.hex()},
    )
    for one in hidden:
        log = [*DSTACK[:2], one, DSTACK[3], EVIL]
        assert broken(verify(log, truth=measured, runtime_events=wanted)) == ["event compose-hash"], one


def test_a_colon_cannot_move_the_end_of_a_name() -> None:
    whole = runtime("compose-hash", b"a:b")
    assert whole["digest"] == runtime("compose-hash:a", b"b")["digest"]
    with pytest.raises(EvidenceInvalid, match="colon"):
        read_event_log(json.dumps([runtime("compose-hash:a", b"b")]).encode())


@pytest.mark.parametrize(
    "log",
    [
        *(b"", b"[1]", b"[" * 50_000, b"{}", b"\xff" * 64, b" " * (1 << 21), CCEL[:-80], CCEL[:20]),
        ccel(event2(4, 0x4, bytes(48), b"")),
        ccel(event2(-1, 0x4, bytes(48), b"")),
        ccel(event2(0, 0x4, bytes(48), b""), sizes=((0x0B, 32),)),
        ccel(event2(0, 0x4, bytes(48), b""), sizes=((0x0C, 20),)),
        ccel(struct.pack("<III", 1, 4, 0) + struct.pack("<I", 1) + b"x"),
        ccel(struct.pack("<IIIH", 1, 4, 2, 0x0C) + bytes(48) + struct.pack("<H", 0x0C) + bytes(48), padding=b""),
        json.dumps([DSTACK[0] | {"imr": 4}]).encode(),
        json.dumps([DSTACK[0] | {"digest": "00"}]).encode(),
        json.dumps([DSTACK[0] | {"digest": ""}]).encode(),
        json.dumps([DSTACK[1] | {"event_payload": "x"}]).encode(),
    ],
)
def test_malformed_logs_are_named(log: bytes) -> None:
    with pytest.raises(EvidenceInvalid, match=r"event log|event of the log"):
        read_event_log(log)


def test_a_long_log_is_read_in_one_pass() -> None:
    quiet = struct.pack("<IIII", 0, 3, 0, 0)
    assert read_event_log(ccel(quiet * 60_000)) == ()
    with pytest.raises(EvidenceInvalid, match="too long"):
        read_event_log(ccel(event2(0, 4, bytes(48), b"") * 4097))


@pytest.mark.parametrize("events", [{"a": ()}, {"a": ("0",)}, {"a": ("zz",)}])
def test_a_mistyped_policy_is_refused(events: Any) -> None:
    with pytest.raises(ValueError, match="runtime_events"):
        TdxPolicy(runtime_events=events)


@settings(max_examples=60)
@given(st.binary(max_size=64), st.integers(0, 4000))
def test_no_bytes_make_it_fail_otherwise(data: bytes, at: int) -> None:
    for whole in (CCEL, json.dumps(DSTACK).encode()):
        place = at % len(whole)
        for log in (data, b"[" + data, whole[:place] + data + whole[place + len(data) :]):
            with contextlib.suppress(EvidenceInvalid):
                events: tuple[Event, ...] = read_event_log(log)
                json.dumps([event.describe() for event in events])
                replay(events)
