"""What one step of a generation costs: its programs, as parties compile them, measured one by one and added up. Also
what gathering costs once it is known what to gather (Table 2).

A step is embed, then every layer, then head. Layers of a kind cost the same, so each kind is measured once and counted
as often as it occurs. Programs run on random numbers of their inputs' types: on shares nothing depends on values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from spu import libspu
from spu.utils import frontend

from cloister_bench.mpc.baselines import method_of
from cloister_bench.mpc.cost import Cost, total, typical
from cloister_bench.mpc.parties import Parties
from cloister_bench.mpc.plan import Variant
from cloister_mpc.cache.plan import CachePlan
from cloister_mpc.model import decoder
from cloister_mpc.model.programs import Outline, Program, Programs
from cloister_mpc.model.shape import ModelShape

LONG = 20.0  # seconds; what takes as long is not repeated
LUCKY = 5  # runs of a program that ranks by random pivots: its bytes differ by a third from run to run

Counted = tuple[Program, int]


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
    """Measures on the given parties. A program met again, in whichever variant, is not measured again."""

    def __init__(self, parties: Parties, shape: ModelShape, *, repeats: int, new_tokens: int) -> None:
        self.parties = parties
        self.shape = shape
        self._repeats = repeats
        self._new_tokens = new_tokens
        self._known: dict[bytes, Cost] = {}

    def steps(self, variants: Sequence[Variant], seq: int, *, layers_only: bool = False) -> list[Step]:
        """A token of each variant after `seq` others (a multiple of 16). The variants' programs run in turn, round by
        round, so that a slow minute hits all of them."""
        planned = [self._planned(variant, seq) for variant in variants]
        if layers_only:
            planned = [[[one for one in counted if not _is_outside(one[0])] for counted in each] for each in planned]
        self._measure([program for each in planned for counted in each for program, _ in counted])
        return [self._composed(each, seq) for each in planned]

    def whole_step(self, variant: Variant, seq: int) -> list[Cost]:
        """All programs of a step in sequence, as in serving, to check the composition."""
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

    def _planned(self, variant: Variant, seq: int) -> list[list[Counted]]:
        """What a step runs and how often: with a cache one list, without one those of one block and of two."""
        if variant.name != "none":
            return [list(programs_of(self._programs(variant, seq)))]
        lengths = [min(seq, decoder.BLOCK)] + [2 * decoder.BLOCK] * (seq > decoder.BLOCK)
        return [list(_recomputing(self._programs(variant, -(-length // 16) * 16))) for length in lengths]

    def _composed(self, planned: list[list[Counted]], seq: int) -> Step:
        costs = [
            tuple(Part(program.name, times, self._known[_key(program)]) for program, times in counted)
            for counted in planned
        ]
        blocks = seq // decoder.BLOCK
        if len(costs) == 1 or blocks == 2:
            return Step(costs[-1])
        (embed, one, _), (_, two, head) = costs
        prompt = Part(one.name, one.times, _extrapolated(one.cost, two.cost, blocks))
        return Step((embed, prompt, head), extrapolated=True)

    def _programs(self, variant: Variant, seq: int) -> Programs:
        # The variant names the functions, not the plan, so that equal plans give equal programs.
        plan = CachePlan(method="full") if variant.plan.method in ("full_naive", "none") else variant.plan
        return Programs(self.shape, Outline(seq, self._new_tokens, plan, variant.functions), make=method_of)


def programs_of(kinds: Programs) -> Iterator[Counted]:
    """What one step runs, and how often."""
    leading = len(kinds.leaders)
    following = kinds.shape.layers - leading
    yield kinds.embed(1), 1
    yield kinds.step(1, True), leading
    if following:
        yield kinds.step(1, False), following
    if rescaled := sum(before != after for before, after in pairwise(kinds.shape.scales)):
        yield kinds.rescale(1), rescaled
    yield kinds.head(1), 1


def _recomputing(kinds: Programs) -> Iterator[Counted]:
    """The whole sequence again through all layers, for the one token that follows it. Its embeddings are kept."""
    yield kinds.embed(1), 1
    yield kinds.prompt(True), kinds.shape.layers
    yield kinds.head(1), 1


def _is_outside(program: Program) -> bool:
    return program.name.startswith(("embed", "head"))


def _key(program: Program) -> bytes:
    return sha256(program.code).digest()


def _extrapolated(one: Cost, two: Cost, blocks: int) -> Cost:
    """A prompt's programs go block by block of columns, each block seeing those before it: the cost is linear in blocks
    and in pairs of them. n blocks: n times one, and n (n - 1) / 2 times what two cost more than twice one."""
    longer = two + one * -2
    return one * blocks + longer * (blocks * (blocks - 1) // 2)


CLUSTERS = 64
SHARE = 4


def gatherings(shape: ModelShape, seq: int) -> dict[str, tuple[Callable[..., Any], list[Any]]]:
    """By name: a function and the types of its arguments.

    All take a quarter of the keys and values of a layer's heads out of T tokens: by secret indices made one-hot with
    equality tests (Algorithm 2), or with rows of a secret permutation taken by public ranks, for the product alone.
    """
    heads, wide = shape.kv_heads, 2 * shape.head_size + 1  # keys, values, and the values' last column

    def by_index(indices: Array, tokens: Array) -> Array:
        rows = (indices[..., None] == jnp.arange(tokens.shape[1])).astype(jnp.int32)
        return jnp.stack([rows[head] @ tokens[head] for head in range(heads)])

    def by_row(rows: Array, tokens: Array) -> Array:
        return jnp.stack([rows[head] @ tokens[head] for head in range(heads)])

    struct: Any = jax.ShapeDtypeStruct

    def integers(*sizes: int) -> Any:
        return struct(sizes, jnp.int32)

    by_token = struct((heads, seq, wide), jnp.float32)
    by_cluster = struct((heads, CLUSTERS, seq // CLUSTERS * wide), jnp.float32)
    return {
        "token by token, equality tests": (by_index, [integers(heads, seq // SHARE), by_token]),
        "cluster by cluster, equality tests": (by_index, [integers(heads, CLUSTERS // SHARE), by_cluster]),
        "cluster by cluster, rows of a permutation": (
            by_row,
            [integers(heads, CLUSTERS // SHARE, CLUSTERS), by_cluster],
        ),
    }


def measure_function(parties: Parties, function: Callable[..., Any], types: list[Any], repeats: int) -> Cost:
    """A function of secret arguments, on random numbers."""
    secret = [libspu.Visibility.VIS_SECRET] * len(types)
    names = [f"in/{number}" for number in range(len(types))]
    executable, _ = frontend.compile(
        frontend.Kind.JAX, function, types, {}, names, secret, lambda _: ["out"], copts=libspu.CompilerOptions()
    )
    program = Program(executable.name, executable.code, tuple(names), ("out",))
    return typical(parties.run([program] * repeats))
