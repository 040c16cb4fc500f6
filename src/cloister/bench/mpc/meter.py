"""What one step of a generation costs: its programs, as parties compile them, measured one by one and added up.

A step is embed, then every layer, then head. Layers of a kind cost the same, so each kind is measured once and counted
as often as it occurs. Programs run on random numbers of their inputs' types: on shares nothing depends on values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from cloister.bench.mpc.cost import Cost, total, typical
from cloister.bench.mpc.parties import Parties
from cloister.bench.mpc.signature import inputs_of
from cloister.bench.mpc.ways import Way
from cloister.mpc.cache.plan import CachePlan

if TYPE_CHECKING:
    from cloister.mpc.programs import Program, Programs
    from cloister.mpc.shape import ModelShape

BLOCK = 256  # columns a prompt's program computes at once: its cost is linear in blocks, and in pairs of them


@dataclass(frozen=True, slots=True)
class Part:
    """A program and how often a step runs it."""

    name: str
    times: int
    cost: Cost


@dataclass(frozen=True, slots=True)
class Step:
    """One token's computation."""

    parts: tuple[Part, ...]
    extrapolated: bool = False

    @property
    def cost(self) -> Cost:
        return total(part.cost * part.times for part in self.parts)


class Meter:
    """Measures on the given parties. A program met again, in whichever way, is not measured again."""

    def __init__(self, parties: Parties, shape: ModelShape, *, repeats: int, new_tokens: int) -> None:
        self.parties = parties
        self.shape = shape
        self._repeats = repeats
        self._new_tokens = new_tokens
        self._known: dict[bytes, Cost] = {}

    def step(self, way: Way, seq: int) -> Step:
        """A token generated after `seq` others (a multiple of 16)."""
        if way.plan.method == "none":
            return self._without_cache(way, seq)
        kinds = self._programs(way, seq)
        return Step(tuple(Part(program.name, times, self.measure(program)) for program, times in programs_of(kinds)))

    def whole_step(self, way: Way, seq: int) -> list[Cost]:
        """All programs of a step one after another, as in serving: what composing is checked against."""
        order: list[Program] = []
        for program, times in programs_of(self._programs(way, seq)):
            order += [program] * times
        return self.parties.run([self._executable(program) for program in order])

    def measure(self, program: Program) -> Cost:
        """One program's cost."""
        key = sha256(program.code).digest()
        if key not in self._known:
            executable = self._executable(program)
            self._known[key] = typical(self.parties.run([executable] * self._repeats))
        return self._known[key]

    def _without_cache(self, way: Way, seq: int) -> Step:
        """The whole sequence anew for every token. Beyond two blocks: block i adds what block 2 did, i - 1 times."""
        first = self._recompute(way, min(seq, BLOCK))
        if seq <= BLOCK:
            return Step(first)
        second = self._recompute(way, 2 * BLOCK)
        if seq <= 2 * BLOCK:
            return Step(second)
        blocks = seq // BLOCK
        more = tuple(
            Part(one.name, one.times, _extrapolated(one.cost, two.cost, blocks))
            for one, two in zip(first, second, strict=True)
        )
        return Step(more, extrapolated=True)

    def _recompute(self, way: Way, seq: int) -> tuple[Part, ...]:
        kinds = self._programs(way, -(-seq // 16) * 16)
        columns, layers = kinds.outline.prompt_tokens, self.shape.layers
        counted = ((kinds.embed(columns), 1), (kinds.prompt(True), layers), (kinds.head(1, columns), 1))
        return tuple(Part(program.name, times, self.measure(program)) for program, times in counted)

    def _programs(self, way: Way, seq: int) -> Programs:
        from cloister.mpc.programs import Outline, Programs

        # On which functions a cache is computed is the way's affair, so that equal plans give equal programs.
        plan = CachePlan(method="full") if way.plan.method in ("full_naive", "none") else way.plan
        return Programs(self.shape, Outline(seq, self._new_tokens, plan, way.functions))

    def _executable(self, program: Program) -> Any:
        from spu import libspu

        names = [self.parties.hold(kind) for kind in inputs_of(program.code)]
        outputs = [f"out/{number}" for number in range(len(program.outputs))]
        return libspu.Executable(name=program.name, input_names=names, output_names=outputs, code=program.code)


def programs_of(kinds: Programs) -> Iterator[tuple[Program, int]]:
    """What one step runs, and how often."""
    leading = len(kinds.leaders)
    following = kinds.shape.layers - leading
    yield kinds.embed(1), 1
    if kinds.ahead:
        yield kinds.select(1), 1
    yield kinds.step(1, True), leading
    if following:
        yield kinds.step(1, False), following
    if rescaled := sum(before != after for before, after in pairwise(kinds.shape.scales)):
        yield kinds.rescale(1), rescaled
    yield kinds.head(1), 1


def _extrapolated(one: Cost, two: Cost, blocks: int) -> Cost:
    """n blocks: n times the first, and n (n - 1) / 2 times what the second takes longer than the first."""
    longer = two + one * -2
    return one * blocks + longer * (blocks * (blocks - 1) // 2)
