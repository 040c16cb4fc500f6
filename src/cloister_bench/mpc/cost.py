"""What a run costs by SPU's profiler, and an upper bound on slower networks: seconds measured + bytes of the busiest
party / bandwidth + messages of one party x latency (one way). No two rounds overlap in SPU's protocols."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from statistics import median
from typing import TypeVar

from cloister.errors import ProtocolError

Number = TypeVar("Number", int, float)

_NUMBER = r"([\d.]+(?:e[+-]?\d+)?)"
_OPERATOR = re.compile(
    rf"- pphlo\.(?:custom_call: )?([\w.]+), executed (\d+) times, duration {_NUMBER}s, "
    r"send bytes (\d+) recv bytes \d+, send actions (\d+)"
)
_WHOLE = re.compile(r"Link details: total send bytes (\d+), recv bytes \d+, send actions (\d+)")
_TIME = re.compile(rf"SPU execution .* completed, .*total time {_NUMBER}s\.")
LIMIT = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of each party by rank; `seconds` are those of the slowest, `cpu` what each one's processor worked."""

    seconds: float = 0.0
    sent: tuple[int, ...] = ()
    messages: tuple[int, ...] = ()
    times: int = 0
    cpu: tuple[float, ...] = ()

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.seconds + other.seconds,
            _each(self.sent, other.sent),
            _each(self.messages, other.messages),
            self.times + other.times,
            _each(self.cpu, other.cpu),
        )

    @property
    def bytes(self) -> int:
        return sum(self.sent)

    @property
    def most_bytes(self) -> int:
        return max(self.sent, default=0)

    @property
    def most_messages(self) -> int:
        return max(self.messages, default=0)

    @property
    def most_cpu(self) -> float:
        return max(self.cpu, default=0.0)


@dataclass(frozen=True, slots=True)
class Network:
    bytes_per_second: float
    latency_seconds: float

    def seconds(self, tally: Tally) -> float:
        return tally.seconds + tally.most_bytes / self.bytes_per_second + tally.most_messages * self.latency_seconds


LAN = Network(377e6, 0.3e-3)  # both as in the paper's own setting (§5.1: Rathee et al., 2020)
WAN = Network(40e6, 40e-3)


@dataclass(frozen=True, slots=True)
class Cost:
    """Operators are SPU's `pphlo` instructions by name."""

    whole: Tally = Tally()
    operators: Mapping[str, Tally] = field(default_factory=dict)

    def __add__(self, other: "Cost") -> "Cost":
        return combined([self, other], lambda both: both[0] + both[1], Tally())


def combined(costs: Sequence[Cost], by: Callable[[Sequence[Tally]], Tally], absent: Tally) -> Cost:
    names = dict.fromkeys(name for cost in costs for name in cost.operators)
    operators = {name: by([cost.operators.get(name, absent) for cost in costs]) for name in names}
    return Cost(by([cost.whole for cost in costs]), operators)


def total(costs: Iterable[Cost]) -> Cost:
    return reduce(add, costs, Cost())


def typical(repeats: Sequence[Cost]) -> Cost:
    """Middle times, mean counts: these differ by who truncated what, and by the luck of top-k's random pivots."""
    return combined(repeats, _typical, Tally())


def _typical(repeats: Sequence[Tally]) -> Tally:
    return Tally(
        median(each.seconds for each in repeats),
        _means([each.sent for each in repeats]),
        _means([each.messages for each in repeats]),
        repeats[0].times,
        tuple(median(party) for party in zip(*(each.cpu for each in repeats), strict=True)),
    )


def _means(repeats: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    known = [each for each in repeats if each]
    return tuple(round(sum(party) / len(repeats)) for party in zip(*known, strict=True))


def _each(left: tuple[Number, ...], right: tuple[Number, ...]) -> tuple[Number, ...]:
    if not left or not right:
        return left or right
    return tuple(map(add, left, right))


def count_profiles(text: str) -> int:
    return len(_WHOLE.findall(text))


def read_profiles(text: str) -> list[Cost]:
    """ProtocolError where `text` tells of none, or of less than it begins."""
    if len(text) > LIMIT:
        raise ProtocolError("A party's log is too long to be that of these runs.")
    profiles, begin = [], 0
    for whole in _WHOLE.finditer(text):
        profiles.append(_read_one(text[begin : whole.start()], int(whole[1]), int(whole[2])))
        begin = whole.end()
    if not profiles or _TIME.search(text, begin):
        raise ProtocolError("A party's log holds no profile of its run.", hint="Is this another version of SPU?")
    return profiles


def _read_one(text: str, sent: int, messages: int) -> Cost:
    times = _TIME.findall(text)
    if len(times) != 1:
        raise ProtocolError("A party's log does not say how long its run took.", hint="Is this another version of SPU?")
    operators: dict[str, Tally] = {}
    for name, executed, seconds, bytes_sent, sends in _OPERATOR.findall(text):
        found = Tally(float(seconds), (int(bytes_sent),), (int(sends),), int(executed))
        operators[name] = operators.get(name, Tally()) + found
    return Cost(Tally(float(times[0]), (sent,), (messages,), 1), operators)


def merge(parties: Sequence[Cost], cpu: Sequence[float] = ()) -> Cost:
    cost = combined(parties, _side_by_side, absent=Tally(0.0, (0,), (0,)))
    return replace(cost, whole=replace(cost.whole, cpu=tuple(cpu)))


def _side_by_side(parties: Sequence[Tally]) -> Tally:
    return Tally(
        max(each.seconds for each in parties),
        tuple(each.sent[0] for each in parties),
        tuple(each.messages[0] for each in parties),
        max(each.times for each in parties),
    )
