"""The firmware's event log (CCEL; TCG PC Client Platform Firmware Profile §10, crypto-agile form), replayed: RTMR0. The
log proves nothing: take it from a machine whose quote was verified, and whose RTMR0 it gives."""

from __future__ import annotations

import hashlib

from cloister.errors import EvidenceInvalid, SetupError

MAX_LOG_BYTES = 1 << 20
_REGISTERS, _NO_ACTION, _SHA384, _DIGEST_BYTES = 4, 3, 0x000C, 48


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0
        self._end = len(data.rstrip(data[-1:])) if data[-1:] in (b"\xff", b"\0") else len(data)

    def take(self, count: int) -> bytes:
        if count > len(self._data) - self._at:
            raise EvidenceInvalid("The event log ends within an event.")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "little")

    @property
    def ended(self) -> bool:
        """At its end, or where only padding follows."""
        return self._at >= self._end


def rtmr0_of(log: bytes) -> bytes:
    """From zeros, RTMR0 = SHA-384(RTMR0 ‖ digest) for each of its events (TDG.MR.RTMR.EXTEND)."""
    register, events = bytes(_DIGEST_BYTES), [digest for index, digest in _events(log) if index == 0]
    if not events:
        raise SetupError("The event log has no event of RTMR0.", hint="It is /sys/firmware/acpi/tables/data/CCEL.")
    for digest in events:
        register = hashlib.sha384(register + digest).digest()
    return register


def _events(data: bytes) -> list[tuple[int, bytes]]:
    """Register and digest of each event. The first event names the algorithms."""
    log, events = _Reader(data), []
    sizes = _digest_sizes(log)
    while not log.ended:
        register, kind = log.number(4), log.number(4)
        digests: dict[int, bytes] = {}
        for _ in range(log.number(4)):
            algorithm = log.number(2)
            if algorithm not in sizes or algorithm in digests:
                raise EvidenceInvalid("An event of the log has digests that the log does not announce.")
            digests[algorithm] = log.take(sizes[algorithm])
        log.take(log.number(4))
        if kind == _NO_ACTION:
            continue
        if not 1 <= register <= _REGISTERS or _SHA384 not in digests:
            raise EvidenceInvalid("The event log is not of a TD's registers.")
        events.append((register - 1, digests[_SHA384]))
    return events


def _digest_sizes(log: _Reader) -> dict[int, int]:
    _, kind, _, size = log.number(4), log.number(4), log.take(20), log.number(4)
    spec = _Reader(log.take(size))
    if kind != _NO_ACTION or spec.take(16) != b"Spec ID Event03\0":
        raise EvidenceInvalid("The event log does not begin as TCG's do.", hint="It is a CCEL table.")
    spec.take(8)
    sizes = {spec.number(2): spec.number(2) for _ in range(min(spec.number(4), 16))}
    if sizes.get(_SHA384) != _DIGEST_BYTES:
        raise EvidenceInvalid("The event log has no SHA-384 digests.")
    return sizes
