"""Reads what SPU's profiler writes into a party's log. Knows its wording, nothing of processes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from cloister.bench.mpc.cost import Cost, Tally
from cloister.errors import ProtocolError

_NUMBER = r"([\d.]+(?:e[+-]?\d+)?)"
_OPERATOR = re.compile(
    rf"- pphlo\.([\w.]+), executed (\d+) times, duration {_NUMBER}s, "
    r"send bytes (\d+) recv bytes \d+, send actions (\d+)"
)
_WHOLE = re.compile(r"Link details: total send bytes (\d+), recv bytes \d+, send actions (\d+)")
_TIME = re.compile(rf"SPU execution .* completed, .*total time {_NUMBER}s\.")
LIMIT = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PartyProfile:
    """One program at one party."""

    seconds: float
    sent: int
    messages: int
    operators: dict[str, Tally] = field(default_factory=dict)


def is_whole(text: str) -> bool:
    """Whether the profiler has written its last line of the run."""
    return _WHOLE.search(text) is not None


def read_profile(text: str) -> PartyProfile:
    """The last run that `text` tells of. ProtocolError where it tells of none."""
    whole = list(_WHOLE.finditer(text))
    times = _TIME.findall(text)
    if not whole or not times or len(text) > LIMIT:
        raise ProtocolError("A party's log holds no profile of its run.", hint="Is this another version of SPU?")
    begun = text.rfind("HLO profiling", 0, whole[-1].start())
    operators: dict[str, Tally] = {}
    for name, executed, seconds, sent, messages in _OPERATOR.findall(text[max(begun, 0) : whole[-1].start()]):
        found = Tally(float(seconds), (int(sent),), (int(messages),), int(executed))
        operators[name] = operators.get(name, Tally()) + found
    return PartyProfile(float(times[-1]), int(whole[-1][1]), int(whole[-1][2]), operators)


def merge(parties: Sequence[PartyProfile]) -> Cost:
    """All parties' profiles of one run, by rank."""
    names = dict.fromkeys(name for party in parties for name in party.operators)
    whole = Tally(
        max(party.seconds for party in parties),
        tuple(party.sent for party in parties),
        tuple(party.messages for party in parties),
        1,
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
