"""What one step of a generation costs: each kind of program is measured once, and counted as often as it occurs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise

from cloister_bench.mpc.baselines import method_of
from cloister_bench.mpc.cost import Cost, total, typical
from cloister_bench.mpc.parties import Parties
from cloister_bench.mpc.plan import Variant
from cloister_mpc.model.programs import Outline, Program, Programs
from cloister_mpc.model.shape import ModelShape

LONG = 20.0  # seconds; what takes as long is not repeated
LUCKY = 5  # runs of a program that ranks by random pivots: its bytes differ by a third from run to run

Counted = tuple[Program, int]


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    times: int
    cost: Cost


@dataclass(frozen=True, slots=True)
class Step:
    parts: tuple[Part, ...]

    @property
    def cost(self) -> Cost:
        return total(part.cost for part in self.parts for _ in range(part.times))


class Meter:
    """A program met again, in whichever variant, is not measured again."""

    def __init__(self, parties: Parties, shape: ModelShape, *, repeats: int, new_tokens: int) -> None:
        self.parties = parties
        self.shape = shape
        self._repeats = repeats
        self._new_tokens = new_tokens
        self._known: dict[bytes, Cost] = {}

    def steps(self, variants: Sequence[Variant], seq: int) -> list[Step]:
        """After `seq` tokens (a multiple of 16). Variants run in turn, so that a slow minute hits all of them."""
        planned = [list(programs_of(self._programs(variant, seq))) for variant in variants]
        self._measure([program for counted in planned for program, _ in counted])
        return [
            Step(tuple(Part(program.name, times, self._known[_key(program)]) for program, times in counted))
            for counted in planned
        ]

    def whole_step(self, variant: Variant, seq: int) -> list[Cost]:
        order: list[Program] = []
        for program, times in programs_of(self._programs(variant, seq)):
            order += [program] * times
        return self.parties.run(order)

    def _measure(self, programs: Sequence[Program]) -> None:
        new = {_key(program): program for program in programs if _key(program) not in self._known}
        found: dict[bytes, list[Cost]] = {key: [] for key in new}
        for number in range(max(self._repeats, LUCKY)):
            for key, program in new.items():
                wanted = number < self._repeats or b"mhlo.topk" in program.code
                if not found[key] or (wanted and found[key][0].whole.seconds < LONG):
                    found[key] += self.parties.run([program])
        self._known |= {key: typical(costs) for key, costs in found.items()}

    def _programs(self, variant: Variant, seq: int) -> Programs:
        return Programs(self.shape, Outline(seq, self._new_tokens, variant.plan, variant.functions), make=method_of)


def programs_of(kinds: Programs) -> Iterator[Counted]:
    yield kinds.embed(1), 1
    yield kinds.step(1), kinds.shape.layers
    if rescaled := sum(before != after for before, after in pairwise(kinds.shape.scales)):
        yield kinds.rescale(1), rescaled
    yield kinds.head(1), 1


def _key(program: Program) -> bytes:
    return sha256(program.code).digest()
