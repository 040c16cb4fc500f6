"""Reads what SPU's profiler writes into a party's log. Knows its wording, nothing of processes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from cloister.bench.mpc.cost import Cost, Tally
from cloister.errors import ProtocolError

_NUMBER = r"([\d.]+(?:e[+-]?\d+)?)"
_OPERATOR = re.compile(
    rf"- pphlo\.(?:custom_call: )?([\w.]+), executed (\d+) times, duration {_NUMBER}s, "
    r"send bytes (\d+) recv bytes \d+, send actions (\d+)"
)
_WHOLE = re.compile(r"Link details: total send bytes (\d+), recv bytes \d+, send actions (\d+)")
_TIME = re.compile(rf"SPU execution .* completed, .*total time {_NUMBER}s\.")
LIMIT = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PartyProfile:
    """One program at one party."""

    seconds: float
    sent: int
    messages: int
    operators: dict[str, Tally] = field(default_factory=dict)


def count_profiles(text: str) -> int:
    """How many runs the profiler has written of to the end."""
    return len(_WHOLE.findall(text))


def read_profiles(text: str) -> list[PartyProfile]:
    """Every run that `text` tells of, in order. ProtocolError where it tells of none, or of less than it begins."""
    if len(text) > LIMIT:
        raise ProtocolError("A party's log is too long to be that of these runs.")
    profiles, begin = [], 0
    for whole in _WHOLE.finditer(text):
        profiles.append(_read_one(text[begin : whole.start()], int(whole[1]), int(whole[2])))
        begin = whole.end()
    if not profiles or _TIME.search(text, begin):
        raise ProtocolError("A party's log holds no profile of its run.", hint="Is this another version of SPU?")
    return profiles


def _read_one(text: str, sent: int, messages: int) -> PartyProfile:
    times = _TIME.findall(text)
    if len(times) != 1:
        raise ProtocolError("A party's log does not say how long its run took.", hint="Is this another version of SPU?")
    operators: dict[str, Tally] = {}
    for name, executed, seconds, bytes_sent, sends in _OPERATOR.findall(text):
        found = Tally(float(seconds), (int(bytes_sent),), (int(sends),), int(executed))
        operators[name] = operators.get(name, Tally()) + found
    return PartyProfile(float(times[0]), sent, messages, operators)


def merge(parties: Sequence[PartyProfile], cpu: Sequence[float] = ()) -> Cost:
    """All parties' profiles of one run, by rank, and the processor's time each says that it took."""
    names = dict.fromkeys(name for party in parties for name in party.operators)
    whole = Tally(
        max(party.seconds for party in parties),
        tuple(party.sent for party in parties),
        tuple(party.messages for party in parties),
        1,
        tuple(cpu),
    )
    return Cost(whole, {name: _operator([party.operators.get(name) for party in parties]) for name in names})


def _operator(parties: Sequence[Tally | None]) -> Tally:
    known = [each or Tally(0.0, (0,), (0,)) for each in parties]
    return Tally(
        max(each.seconds for each in known),
        tuple(each.sent[0] for each in known),
        tuple(each.messages[0] for each in known),
        max(each.times for each in known),
    )
