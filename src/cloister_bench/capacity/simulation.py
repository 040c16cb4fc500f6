"""Many nodes in virtual time, under a trace. A client chooses each request's node by a random token, and no balancer
moves it. Nodes meet only where one is away: a request that was not sent is sent once more, with another token, which
may name the same node again. An answer that was under way is lost, as the client reports it: trying again is its
user's choice (`ask_again`)."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from random import Random
from typing import Literal

from cloister.levels import LevelName
from cloister_bench.capacity.machine import Machine
from cloister_bench.capacity.node import Job, Level, Node
from cloister_bench.capacity.traces import Request

Outcome = Literal["answered", "refused", "too_long", "unreachable", "lost"]
RETRY_S = 0.75  # the SDK's first pause is 0.5 to 1 s
_REPORT_EVERY = 1000


@dataclass(frozen=True, slots=True)
class Outage:
    """A node that is killed at `at`, or drains, and serves again at `until`."""

    node: int
    at: float
    until: float
    kind: Literal["kill", "drain"] = "kill"


@dataclass(frozen=True)
class Scenario:
    """`levels`: shares of the requests. `simulated`: the first of the nodes alone, under their own share."""

    nodes: int
    levels: Mapping[LevelName, float]
    outages: Sequence[Outage] = ()
    tokens: bool = True
    verified: float = 0.1
    ask_again: bool = False
    simulated: int | None = None
    seed: int = 0


@dataclass
class Results:
    """`first_s` and `whole_s` of the answers, from when their users first asked, in the order of their ends."""

    first_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    retried: int = 0
    tokens_made: int = 0
    seconds: float = 0.0
    ended_s: float = 0.0  # when the last answer had its last token
    nodes: list[Node] = field(default_factory=list)

    @property
    def utilisation(self) -> float:
        """The share of the time in which nodes computed, on average."""
        return self.busy_s / (len(self.nodes) * self.seconds) if self.seconds else 0.0

    @property
    def busy_s(self) -> float:
        return sum(node.counts.busy_s for node in self.nodes)

    def of_nodes(self, name: str) -> list[float]:
        return [getattr(node.counts, name) for node in self.nodes]


_ARRIVAL, _SEND, _AWAY, _CUT, _BACK = range(5)


class Simulation:
    """Events in order of time: arrivals, requests sent again, nodes that go and come back."""

    def __init__(self, machine: Machine, scenario: Scenario, progress: Callable[[float], None] | None = None) -> None:
        self._scenario, self._progress = scenario, progress or (lambda _: None)
        self._random = Random(f"simulation:{scenario.seed}")
        self.results = Results()
        levels = {name: Level(name, machine.profile(name), machine) for name in scenario.levels}
        self._names = list(scenario.levels)
        self._weights = list(scenario.levels.values())
        self.results.nodes = [
            Node(machine, levels, self._answered, self._refused, scenario.tokens, scenario.verified)
            for _ in range(min(scenario.nodes, scenario.simulated or scenario.nodes))
        ]
        self._away = [False] * len(self.results.nodes)
        self._order = count()
        self._events: list[tuple[float, int, int, Outage | Job]] = []
        for outage in scenario.outages:
            self._later(outage.at, _AWAY, outage)
            if outage.kind == "drain":
                self._later(min(outage.at + machine.limits.drain_s, outage.until), _CUT, outage)
            self._later(outage.until, _BACK, outage)
        heapify(self._events)

    def run(self, requests: Iterable[Request]) -> Results:
        last = 0.0
        for number, request in enumerate(requests):
            self._until(request.at)
            last = request.at
            [level] = self._random.choices(self._names, self._weights) if len(self._names) > 1 else self._names
            self._send(Job(number, request.at, request.prompt, request.output, level), request.at)
            if number % _REPORT_EVERY == 0:
                self._progress(request.at)
        self._until(float("inf"))
        for node in self.results.nodes:
            node.advance(float("inf"))
        self.results.seconds = last
        self._progress(last)
        return self.results

    def _later(self, at: float, kind: int, what: Outage | Job) -> None:
        heappush(self._events, (at, next(self._order), kind, what))

    def _until(self, now: float) -> None:
        while self._events and self._events[0][0] <= now:
            at, _, kind, what = heappop(self._events)
            if isinstance(what, Job):
                self._send(what, at)
            elif what.node < len(self._away):
                self._change(what, at, kind)

    def _change(self, outage: Outage, at: float, kind: int) -> None:
        node = self.results.nodes[outage.node]
        node.advance(at)
        if kind == _BACK:
            self._lose(node, at)
            node.clock = at
            node.clear()
            self._away[outage.node] = False
            return
        self._away[outage.node] = True
        if kind == _CUT or outage.kind == "kill":
            self._lose(node, at)

    def _lose(self, node: Node, at: float) -> None:
        """The answers under way."""
        for job in sorted(node.clear(), key=lambda job: job.number):
            if self._scenario.ask_again and not job.tries:
                self._again(job, at)
            else:
                self.results.outcomes["lost"] += 1

    def _again(self, job: Job, now: float) -> None:
        job.tries += 1
        self.results.retried += 1
        self._later(now + RETRY_S, _SEND, job)

    def _send(self, job: Job, now: float) -> None:
        """A token's nonce is random: each node has the same chance (access/node_choice.py)."""
        place = self._random.randrange(self._scenario.nodes)
        if place >= len(self._away):
            return  # a node that is not simulated
        if not self._away[place]:
            node = self.results.nodes[place]
            node.advance(now)
            node.take(job, now)
        elif job.tries:
            self.results.outcomes["unreachable"] += 1
        else:
            self._again(job, now)

    def _answered(self, job: Job, now: float) -> None:
        assert job.first is not None
        self.results.outcomes["answered"] += 1
        self.results.first_s.append(job.first - job.came)
        self.results.whole_s.append(now - job.came)
        self.results.tokens_made += job.output
        self.results.ended_s = max(self.results.ended_s, now)

    def _refused(self, job: Job, why: Literal["refused", "too_long"]) -> None:
        self.results.outcomes[why] += 1
