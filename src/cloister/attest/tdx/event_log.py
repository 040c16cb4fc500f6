"""Event logs: what was measured into a TD's registers (RTMR), event by event, and the registers that come of it.

Two forms: the firmware's CCEL (TCG PC Client Platform Firmware Profile §10, crypto-agile; Google Cloud, any OVMF), and
dstack's JSON. A log is nobody's word until its replay gives the registers of a verified quote. Even then only digests
are vouched for: what an event says of itself counts where its digest covers it (`name`, `value`), else it is a `hint`.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from cloister.errors import EvidenceInvalid

MAX_BYTES: Final = 1 << 20
MAX_EVENTS: Final = 4096
REGISTERS: Final = 4
SHA384: Final = 0x000C
DIGEST_BYTES: Final = 48
NO_ACTION: Final = 3
RUNTIME: Final = 0x08000001
"""dstack's own kind of event, outside TCG's."""
RUNTIME_KIND: Final = "runtime"

_KINDS: Final = {
    **{0x1: "EV_POST_CODE", NO_ACTION: "EV_NO_ACTION", 0x4: "EV_SEPARATOR", 0x5: "EV_ACTION", 0x6: "EV_EVENT_TAG"},
    **{0x8: "EV_S_CRTM_VERSION", 0xA: "EV_PLATFORM_CONFIG_FLAGS", 0xD: "EV_IPL"},
    **{0x80000001: "EV_EFI_VARIABLE_DRIVER_CONFIG", 0x80000002: "EV_EFI_VARIABLE_BOOT"},
    **{0x80000003: "EV_EFI_BOOT_SERVICES_APPLICATION", 0x80000006: "EV_EFI_GPT_EVENT", 0x80000007: "EV_EFI_ACTION"},
    **{0x80000008: "EV_EFI_PLATFORM_FIRMWARE_BLOB", 0x80000009: "EV_EFI_HANDOFF_TABLES"},
    **{0x8000000A: "EV_EFI_PLATFORM_FIRMWARE_BLOB2", 0x8000000B: "EV_EFI_HANDOFF_TABLES2"},
    **{0x8000000C: "EV_EFI_VARIABLE_BOOT2", 0x800000E0: "EV_EFI_VARIABLE_AUTHORITY", RUNTIME: RUNTIME_KIND},
}
_VARIABLES: Final = (0x80000001, 0x80000002, 0x8000000C, 0x800000E0)
_BOOT_VARIABLE: Final = 0x80000002
_IPL: Final = 0xD


@dataclass(frozen=True)
class Event:
    """One extension of RTMR0 to RTMR3. `covered`: whether the digest is of what the event says."""

    register: int
    kind: str
    digest: bytes
    covered: bool = False
    name: str = ""
    value: bytes = b""
    hint: str = ""

    def describe(self) -> dict[str, Any]:
        """As a claim; what the digest does not cover is marked as such."""
        said = {"name": self.name, "value": _plain(self.value) or self.value[:64].hex()} if self.covered else {}
        return {"rtmr": self.register, "kind": self.kind, "digest": self.digest.hex(), **said, "hint": self.hint}


def read_event_log(data: bytes) -> tuple[Event, ...]:
    """The events that extend a register, in order, or EvidenceInvalid."""
    if len(data) > MAX_BYTES:
        raise EvidenceInvalid(f"An event log may have at most {MAX_BYTES} bytes.")
    if data.lstrip()[:1] == b"[":
        return _read_dstack(data)
    return _read_ccel(data)


def replay(events: Sequence[Event]) -> tuple[bytes, ...]:
    """The four registers: from zeros, RTMR = SHA-384(RTMR ‖ digest) for each event (TDG.MR.RTMR.EXTEND)."""
    registers = [bytes(DIGEST_BYTES)] * REGISTERS
    for event in events:
        registers[event.register] = hashlib.sha384(registers[event.register] + event.digest).digest()
    return tuple(registers)


class _JsonEvent(Struct, frozen=True):
    imr: Annotated[int, Meta(ge=0, lt=REGISTERS)]
    event_type: Annotated[int, Meta(ge=0, lt=1 << 32)]
    digest: Annotated[str, Meta(pattern=r"\A([0-9a-fA-F]{96})?\Z")] = ""
    event: Annotated[str, Meta(max_length=256)] = ""
    event_payload: Annotated[str, Meta(pattern=r"\A([0-9a-fA-F]{2})*\Z")] = ""


def _read_dstack(data: bytes) -> tuple[Event, ...]:
    try:
        entries = msgspec.json.decode(data, type=Annotated[tuple[_JsonEvent, ...], Meta(max_length=MAX_EVENTS)])
    except (msgspec.MsgspecError, ValueError, RecursionError) as wrong:
        raise EvidenceInvalid(
            f"The event log does not decode ({type(wrong).__name__}).",
            hint="dstack's is a JSON list of events with imr, event_type, digest, event and event_payload.",
        ) from None
    return tuple(_runtime_event(one) if one.event_type == RUNTIME else _json_boot_event(one) for one in entries)


def _runtime_event(entry: _JsonEvent) -> Event:
    """Version 1 hashes `type:name:payload`, version 2 canonical JSON. A colon in a name could move the boundary."""
    name, payload = entry.event, bytes.fromhex(entry.event_payload)
    if ":" in name:
        raise EvidenceInvalid("A runtime event's name has a colon: nobody can tell where it ends.")
    first = struct.pack("<I", RUNTIME) + f":{name}:".encode("utf-8", "surrogatepass") + payload
    canonical = {"name": name, "payload": payload.hex(), "type": RUNTIME}
    second = json.dumps(canonical, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    digests = [hashlib.sha384(text).digest() for text in (first, second)]
    digest = bytes.fromhex(entry.digest) or digests[0]
    covered = digest in digests
    return Event(entry.imr, RUNTIME_KIND, digest, covered, name, payload) if covered else _unknown(entry, digest)


def _json_boot_event(entry: _JsonEvent) -> Event:
    digest = bytes.fromhex(entry.digest)
    if not digest:
        raise EvidenceInvalid("An event of the log has no digest.")
    return _boot_event(entry.imr, entry.event_type, digest, bytes.fromhex(entry.event_payload)) or _unknown(
        entry, digest
    )


def _unknown(entry: _JsonEvent, digest: bytes) -> Event:
    return Event(entry.imr, _kind(entry.event_type), digest, hint=_plain(entry.event.encode("utf-8", "replace")))


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._end = len(data.rstrip(data[-1:])) if data[-1:] in (b"\xff", b"\0") else len(data)
        self.at = 0

    def take(self, count: int) -> bytes:
        if count > len(self._data) - self.at:
            raise EvidenceInvalid("The event log ends within an event.")
        self.at += count
        return self._data[self.at - count : self.at]

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "little")

    @property
    def ended(self) -> bool:
        """At its end, or where only padding follows."""
        return self.at >= self._end


def _read_ccel(data: bytes) -> tuple[Event, ...]:
    """The first event names the algorithms; then events of (register + 1, kind, digests, data)."""
    log = _Reader(data)
    sizes = _read_spec(log)
    events: list[Event] = []
    while not log.ended:
        register, kind = log.number(4), log.number(4)
        digests: dict[int, bytes] = {}
        for _ in range(log.number(4)):
            algorithm = log.number(2)
            if algorithm not in sizes or algorithm in digests:
                raise EvidenceInvalid("An event of the log has digests that the log does not announce.")
            digests[algorithm] = log.take(sizes[algorithm])
        said = log.take(log.number(4))
        if kind == NO_ACTION:
            continue
        if not 1 <= register <= REGISTERS or SHA384 not in digests or len(events) >= MAX_EVENTS:
            raise EvidenceInvalid("The event log is not of a TD's registers, or too long.")
        digest = digests[SHA384]
        events.append(
            _boot_event(register - 1, kind, digest, said) or Event(register - 1, _kind(kind), digest, hint=_plain(said))
        )
    return tuple(events)


def _read_spec(log: _Reader) -> dict[int, int]:
    _, kind, _, size = log.number(4), log.number(4), log.take(20), log.number(4)
    spec = _Reader(log.take(size))
    if kind != NO_ACTION or spec.take(16) != b"Spec ID Event03\0":
        raise EvidenceInvalid("The event log does not begin as TCG's do.", hint="It is a CCEL table, or dstack's JSON.")
    spec.take(8)
    sizes = {spec.number(2): spec.number(2) for _ in range(min(spec.number(4), 16))}
    if sizes.get(SHA384) != DIGEST_BYTES:
        raise EvidenceInvalid("The event log has no SHA-384 digests.")
    return sizes


def _boot_event(register: int, kind: int, digest: bytes, said: bytes) -> Event | None:
    """The event, if its digest covers what it says; None if the digest is of something else (a kernel, a table)."""

    def covers(text: bytes) -> bool:
        return hashlib.sha384(text).digest() == digest

    word = _kind(kind)
    name, value = _variable(said) if kind in _VARIABLES else ("", said)
    if covers(said):
        return Event(register, word, digest, True, name, value)
    if kind == _BOOT_VARIABLE and covers(value):  # of these only the value is measured
        return Event(register, word, digest, True, "", value, hint=name)
    label, _, text = said.rstrip(b"\0").partition(b": ")  # GRUB's labels are not measured
    if kind == _IPL and covers(text):
        return Event(register, word, digest, True, "", text, hint=_plain(label))
    return None


def _variable(said: bytes) -> tuple[str, bytes]:
    """Name and value of a UEFI variable: GUID, two lengths, the name in UTF-16, the value."""
    letters, size = (int.from_bytes(said[at : at + 8], "little") for at in (16, 24))
    name, value = said[32 : 32 + 2 * letters], said[32 + 2 * letters :]
    if letters > 256 or len(name) != 2 * letters or len(value) != size:
        return "", said
    return name.decode("utf-16-le", "replace"), value


def _kind(number: int) -> str:
    return _KINDS.get(number, f"{number:#x}")


def _plain(data: bytes) -> str:
    """Text, if it is text: one line of plain letters, not too long."""
    text = data.rstrip(b"\0")
    plain = text.isascii() and all(32 <= byte < 127 for byte in text)
    return text[:1024].decode("ascii") if plain else ""
