"""What a program costs by SPU's profiler. An upper bound on slower networks: seconds measured + bytes of the busiest
party / bandwidth + messages of one party x latency (one way). No two rounds overlap in SPU's protocols."""

import re
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from cloister.errors import ProtocolError
from cloister_mpc.config import PARTIES

_SENT = re.compile(r"Link details: total send bytes (\d+), recv bytes \d+, send actions (\d+)")
_TIME = re.compile(r"SPU execution .* completed, .*total time ([\d.]+(?:e[+-]?\d+)?)s\.")


class Cost(NamedTuple):
    seconds: float = 0.0  # of the slowest party
    bytes: float = 0  # of all parties
    most_bytes: float = 0  # of the busiest one
    messages: float = 0  # of the busiest one
    cpu: float = 0.0  # processor seconds of one party, a third of all

    def on(self, network: "Network") -> float:
        return self.seconds + self.most_bytes / network.bytes_per_second + self.messages * network.latency_seconds


class Network(NamedTuple):
    bytes_per_second: float
    latency_seconds: float


LAN = Network(377e6, 0.3e-3)  # both as in the paper's own setting (§5.1: Rathee et al., 2020)
WAN = Network(40e6, 40e-3)


def total(costs: Iterable[Cost]) -> Cost:
    return Cost(*map(sum, zip(Cost(), *costs, strict=True)))


def typical(repeats: Sequence[Cost]) -> Cost:
    """The middle of each number: counts differ, too, by which party truncated what."""
    return Cost(*map(median, zip(*repeats, strict=True)))


def read_profile(text: str, cpu: float) -> Cost | None:
    """Of one run, from what all parties wrote; None where it is not whole yet."""
    sent = [(int(size), int(count)) for size, count in _SENT.findall(text)]
    times = [float(seconds) for seconds in _TIME.findall(text)]
    if len(sent) > PARTIES or len(times) > PARTIES:
        raise ProtocolError("The parties wrote more than one profile each.", hint="Is this another version of SPU?")
    if len(sent) < PARTIES or len(times) < PARTIES:
        return None
    sizes, counts = zip(*sent, strict=True)
    return Cost(max(times), sum(sizes), max(sizes), max(counts), cpu / PARTIES)
