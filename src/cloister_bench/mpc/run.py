"""The whole measurement: each kind of program of a generation's step is run once and counted as often as it occurs."""

from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import pairwise

from cloister_bench.mpc.cost import Cost, total, typical
from cloister_bench.mpc.parties import Parties
from cloister_bench.mpc.results import VARIANTS, Results
from cloister_bench.suite.measurement import Measurement, Watcher
from cloister_mpc.messages import GenerationSpec
from cloister_mpc.model.programs import Program, Programs
from cloister_mpc.model.shape import ModelShape


class Bench(Measurement[Results]):
    def __init__(self, results: Results, shape: ModelShape, watcher: Watcher, save: Callable[[], None]) -> None:
        super().__init__(results, watcher, save)
        self._plan = results.plan
        self._shape = shape
        self._known: dict[bytes, Cost] = {}

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
        new = {key: program for key, program in every.items() if key not in self._known}
        rounds = [{key: parties.cost_of(program) for key, program in new.items()} for _ in range(self._plan.repeats)]
        self._known |= {key: typical([costs[key] for costs in rounds]) for key in new}
        return {
            name: total(self._known[_key(program)] for program, times in counted for _ in range(times))
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
