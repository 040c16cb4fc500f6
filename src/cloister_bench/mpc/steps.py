"""`bench mpc`: each kind of program of a generation's step is run once and counted as often as it occurs. Megabytes are
10⁶ bytes of all parties; messages one party's."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise

from cloister_bench.mpc.cost import LAN, WAN, Cost, total, typical
from cloister_bench.mpc.parties import Parties
from cloister_bench.suite import documents
from cloister_bench.suite.documents import Document, Panel, Row, Table, charts
from cloister_bench.suite.measurement import Measurement, Watcher
from cloister_mpc.cache.plan import PLANS, CachePlan
from cloister_mpc.functions.bundle import EXACT, LEAN, Functions
from cloister_mpc.messages import GenerationSpec
from cloister_mpc.model.programs import Program, Programs
from cloister_mpc.model.shape import ModelShape

VARIANTS: dict[str, tuple[CachePlan, Functions]] = {
    "full_library": (PLANS["full"], EXACT),
    "full": (PLANS["full"], LEAN),
    "mpcache": (PLANS["mpcache"], LEAN),
}
"""The full cache as it is served is what MPCache must beat; the first shows what the library's own functions would
cost."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Bytes and messages need one run, seconds `repeats`."""

    lengths: tuple[int, ...] = (256, 512, 1024, 2048)
    repeats: int = 3
    new_tokens: int = 32


@dataclass
class Results(documents.Results):
    plan: Plan
    runs: list[Row] = field(default_factory=list)

    def add_run(self, method: str, seq: int, cost: Cost) -> None:
        measured = {
            "seconds": cost.seconds,
            "megabytes": cost.bytes / 1e6,
            "messages": cost.messages,
            "lan_seconds": cost.on(LAN),
            "wan_seconds": cost.on(WAN),
            "cpu_seconds": cost.cpu,
            "lan_cpu_seconds": cost._replace(seconds=cost.cpu).on(LAN),
        }
        rounded = {key: round(value, 4) for key, value in measured.items()}
        self.runs.append({"method": method, "seq": seq, **rounded})

    def numbers(self) -> Document:
        return {"runs": list(self.runs)}


def tables(document: Document) -> list[Table]:
    costs = {"MB": "megabytes", "messages": "messages", "processor s": "cpu_seconds", "s here": "seconds"}
    networks = {"s, LAN": "lan_seconds", "s, WAN": "wan_seconds"}
    columns = {"T": "seq", "": "method", **costs, **networks}
    return [Table.of("A token's cost (Figure 10)", document["runs"], columns, labels=2)]


MEASURES = {
    "megabytes": "megabytes a token",
    "messages": "messages a token",
    "lan_cpu_seconds": "seconds a token, LAN (processor s)",
    "wan_seconds": "seconds a token, WAN",
}
FIGURES = {
    "mpc-lengths": charts(
        lambda document: document["runs"],
        "a token's cost, 3 parties",
        *(
            Panel("seq", key, "method", title, log="xy", labels={"xlabel": "tokens in the sequence"})
            for key, title in MEASURES.items()
        ),
        grid=(2, 2),
    )
}


class Bench(Measurement[Results]):
    def __init__(self, results: Results, shape: ModelShape, watcher: Watcher, save: Callable[[], None]) -> None:
        super().__init__(results, watcher, save)
        self._plan = results.plan
        self._shape = shape

    def run(self) -> None:
        self._watcher.begin("lengths", len(self._plan.lengths))
        with self._noting("lengths"), Parties(profile=True) as parties:
            for seq in self._plan.lengths:
                for name, cost in self.steps(parties, seq).items():
                    self._results.add_run(name, seq, cost)
                self._watcher.advance(f"T = {seq}")
                self._save()

    def steps(self, parties: Parties, seq: int) -> dict[str, Cost]:
        """What a step costs after `seq` tokens (a multiple of 16). Variants take turns: a slow minute hits them all."""
        planned = {name: list(programs_of(self._programs(name, seq))) for name in VARIANTS}
        every = {_key(program): program for counted in planned.values() for program, _ in counted}
        rounds = [{key: parties.cost_of(program) for key, program in every.items()} for _ in range(self._plan.repeats)]
        known = {key: typical([costs[key] for costs in rounds]) for key in every}
        return {
            name: total(known[_key(program)] for program, times in counted for _ in range(times))
            for name, counted in planned.items()
        }

    def _programs(self, name: str, seq: int) -> Programs:
        cache, functions = VARIANTS[name]
        return Programs(self._shape, GenerationSpec(seq, self._plan.new_tokens, cache), functions=functions)


def programs_of(kinds: Programs) -> Iterator[tuple[Program, int]]:
    yield kinds.embed(1), 1
    yield kinds.step(1), kinds.shape.layers
    if rescaled := sum(before != after for before, after in pairwise(kinds.shape.scales)):
        yield kinds.rescale(1), rescaled
    yield kinds.head(1), 1


def _key(program: Program) -> bytes:
    return sha256(program.code).digest()
