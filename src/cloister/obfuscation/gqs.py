"""Greedy Quantized Sampling (§5.1, Algorithm 1), made symmetric: every value that is found finds the same values.

Algorithm 1 looks near the *real* token's probability, so only the real prompt finds the others, and an adversary with
the sampling model can test each. Here each step cuts all continuations of the beams into cohorts by a rule that does
not know the real one, and goes on with its cohort: the result is an equivalence class. The quantum is a token's rank:
* The continuations of one beam, or of the beams of one lineage, are cut by rank into cohorts of at most λ_max + 1.
* A word that has begun goes on in every beam with the token of the same rank. An unusual word has unusual substitutes.
* Where beams must differ (a word's first token, a whole number), continuations go, the likeliest first, into the first
  cohort that has neither their lineage nor their value.

Secrets are sampled together as one long one. `Fitting` must depend on tokens alone, or the classes are none.
"""

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from cloister.errors import PromptTooLong, SetupError
from cloister.obfuscation.language_model import Branches, LanguageModel, LogProbs

Distance = Literal["absolute", "relative"]


@dataclass(frozen=True, slots=True)
class Quantization:
    """λ_max: candidates kept at each step. Distance: |P(fake) − P(real)| < ε as in the paper, or of ln P."""

    epsilon: float = 2.0
    lambda_max: int = 128
    temperature: float = 1.0
    distance: Distance = "relative"

    def __post_init__(self) -> None:
        if not self.epsilon > 0 or (self.distance == "absolute" and self.epsilon > 1):
            raise SetupError("ε must be above 0, and at most 1 for an absolute distance.", hint="Try 0.1.")
        if self.lambda_max < 1 or not 0 < self.temperature <= 10:
            raise SetupError("λ_max is at least 1, the temperature above 0 and at most 10.", hint="Try 128 and 1.")

    def holds(self, one: float, other: float) -> bool:
        """Theorem 5.1 for two log-probabilities."""
        return self.gap(one, other) < self.epsilon

    def gap(self, one: float, other: float) -> float:
        return abs(one - other) if self.distance == "relative" else abs(math.exp(one) - math.exp(other))


Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Value = tuple[int, ...]

LEAST_BLOCK = 64  # ranks that the tokenizer is asked about together


@dataclass(frozen=True, slots=True, repr=False)
class Slot:
    """Tokens of a secret or one of its words, and the given ones before. `stem`: no two values have one beginning."""

    target: Value
    bridge: Value = ()
    stem: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class Candidate:
    values: tuple[Value, ...]
    logprob: float


@dataclass(frozen=True, slots=True, repr=False)
class Sampled:
    """The secret's class, itself included, in an order that does not depend on it; empty if its own tokens may not
    stand there. `found[k]`: how many others there were after the k-th slot."""

    secret: tuple[Value, ...]
    members: tuple[Candidate, ...]
    found: tuple[int, ...]


class Fitting(Protocol):
    """`last`: with the next token the slot's value is whole."""

    def allowed(self, number: int, value: Value, last: bool) -> npt.NDArray[np.bool_]:
        """[vocabulary]: the tokens that may follow."""

    def accept(self, number: int, value: Value, last: bool) -> bool:
        """Whether these tokens may stand there, the last one included."""

    def stands(self, values: tuple[Value, ...]) -> bool:
        """Whether what the first slots were filled with may stand in its place in the text."""


@dataclass(frozen=True, slots=True)
class _Beams:
    """Beams of one lineage agree on all slots that are done; `real` is the place of the real one. `begun`: the
    log-probability when the slot began. `parent`, `token`: the beam of the step before, and the token after it."""

    done: list[tuple[Value, ...]]
    value: list[Value]
    logprob: Floats
    begun: Floats
    lineage: Ints
    parent: Ints
    token: Ints
    real: int

    def __len__(self) -> int:
        return len(self.value)

    def apart(self) -> "_Beams":
        lineage = np.arange(len(self), dtype=np.int64)
        return _Beams(self.done, self.value, self.logprob, self.begun, lineage, self.parent, self.token, self.real)


@dataclass(frozen=True, slots=True)
class _Row:
    tokens: Ints
    likely: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Grown:
    beam: int
    token: int
    score: float


@dataclass(frozen=True, slots=True)
class _Ranked:
    beam: Ints
    token: Ints
    score: Floats

    def block_of(self, rank: int, width: int) -> int:
        """Which of the blocks of at most `width` ranks, all about as wide, has this rank."""
        count = -(-len(self.token) // width)
        return next(at for at in range(count) if rank < (at + 1) * len(self.token) // count)

    def block(self, number: int, width: int) -> Iterator[_Grown]:
        count = -(-len(self.token) // width)
        ranks = slice(*(at * len(self.token) // count for at in (number, number + 1))) if number < count else slice(0)
        parts = (self.beam[ranks].tolist(), self.token[ranks].tolist(), self.score[ranks].tolist())
        return (_Grown(*one) for one in zip(*parts, strict=True))


class _Search:
    """The real text is a beam like all others, so nothing is computed for it alone."""

    def __init__(self, branches: Branches, slots: Sequence[Slot], room: int, fitting: Fitting) -> None:
        self._branches, self._slots, self._room, self._fitting = branches, slots, room, fitting
        none = np.zeros(1, dtype=np.int64)
        self._beams = _Beams([()], [()], np.zeros(1), np.zeros(1), none, none, none, 0)
        self._rows: Iterator[LogProbs] = branches.first()
        self._accepted: dict[Value, bool] = {}

    def run(self) -> Generator[int, None, Sampled]:
        """Yields, before each piece that the model computes, how many tokens it has at most."""
        found = [0] * len(self._slots)
        secret = tuple(slot.target for slot in self._slots)
        for number, slot in enumerate(self._slots):
            self._accepted.clear()
            for place, token in enumerate(slot.target, 1):
                last = place == len(slot.target)
                rows = yield from self._continuations(number, last)
                grown = self._cohort(rows, number, token, last, first=place == 1)
                bridge: Value = ()
                if last:
                    grown = self._end_slot(grown)
                    found[number] = max(0, len(grown or ()) - 1)
                    if number + 1 < len(self._slots):
                        bridge = self._slots[number + 1].bridge
                elif slot.stem and grown is not None:
                    grown = grown.apart()
                if grown is None:
                    return Sampled(secret, (), tuple(found))
                self._beams = grown
                if not last or number + 1 < len(self._slots):
                    tokens = [(each, *bridge) for each in grown.token.tolist()]
                    self._rows = self._branches.grow(grown.parent.tolist(), tokens)
        pairs = zip(self._beams.done, self._beams.logprob.tolist(), strict=True)
        return Sampled(secret, tuple(Candidate(*pair) for pair in pairs), tuple(found))

    def _continuations(self, number: int, last: bool) -> Generator[int, None, list[_Row]]:
        found: list[_Row] = []
        while self._branches.left:
            yield self._branches.left
            for row in next(self._rows):
                tokens = np.flatnonzero(self._fitting.allowed(number, self._beams.value[len(found)], last))
                found.append(_Row(tokens, row[tokens]))
        return found

    def _cohort(self, rows: list[_Row], number: int, token: int, last: bool, *, first: bool) -> _Beams | None:
        """None where the real one has no continuation."""
        beams, stem = self._beams, self._slots[number].stem
        lineages: dict[int, list[int]] = {}
        for beam, lineage in enumerate(beams.lineage.tolist()):
            lineages.setdefault(lineage, []).append(beam)
        differ = number > 0 and (first if stem else last)
        each = 1 if differ or (stem and not first) else max(1, self._room // len(lineages))
        width = each if each > 1 else max(LEAST_BLOCK, 2 * len(lineages) if differ else 0)
        own, real = int(beams.lineage[beams.real]), (beams.real, token)
        ranked = _ranked(beams, rows, lineages[own])
        ranks = np.flatnonzero((ranked.beam == beams.real) & (ranked.token == token)).tolist()
        if not ranks:
            return None
        number_of_block = ranked.block_of(ranks[0], width)

        def in_block(those: list[int]) -> Iterator[_Grown]:
            """The continuations of a lineage in the block that may stand there, the likeliest first."""
            for one in _ranked(beams, rows, those).block(number_of_block, width):
                value = (*beams.value[one.beam], one.token)
                if value not in self._accepted:
                    self._accepted[value] = self._fitting.accept(number, value, last)
                if self._accepted[value]:
                    yield one

        offered = {lineage: in_block(those) for lineage, those in lineages.items()}
        if differ:
            chosen = _first_fit(offered, lambda one: (*beams.value[one.beam], one.token), real)
        elif each > 1:
            chosen = [one for those in offered.values() for one in those]
        else:
            chosen = _same_rank(offered, own, real)
        return self._grown(chosen, real) if any((one.beam, one.token) == real for one in chosen) else None

    def _grown(self, chosen: list[_Grown], real: tuple[int, int]) -> _Beams:
        beams = self._beams
        parents = np.array([one.beam for one in chosen], dtype=np.int64)
        tokens = np.array([one.token for one in chosen], dtype=np.int64)
        done = [beams.done[one.beam] for one in chosen]
        value = [(*beams.value[one.beam], one.token) for one in chosen]
        begun, place = beams.begun[parents], [(one.beam, one.token) for one in chosen].index(real)
        logprob = begun + np.array([one.score for one in chosen])
        return _Beams(done, value, logprob, begun, beams.lineage[parents], parents, tokens, place)

    def _end_slot(self, beams: _Beams | None) -> _Beams | None:
        """The beams that may stand in their place in the text, with this slot done."""
        if beams is None:
            return None
        done = [(*before, value) for before, value in zip(beams.done, beams.value, strict=True)]
        kept = [at for at, values in enumerate(done) if self._fitting.stands(values)]
        if beams.real not in kept:
            return None
        logprob = beams.logprob[kept]
        lineage, real = np.arange(len(kept), dtype=np.int64), kept.index(beams.real)
        parts = (lineage, beams.parent[kept], beams.token[kept], real)
        return _Beams([done[at] for at in kept], [()] * len(kept), logprob, logprob, *parts)


def _ranked(beams: _Beams, rows: list[_Row], those: list[int]) -> _Ranked:
    """The continuations of these beams. Those equally likely are in the order of their beams and tokens."""
    score = np.concatenate([beams.logprob[at] - beams.begun[at] + rows[at].likely.astype(np.float64) for at in those])
    beam = np.concatenate([np.full(len(rows[at].tokens), at) for at in those])
    token = np.concatenate([rows[at].tokens for at in those])
    order = np.argsort(-score, kind="stable")
    return _Ranked(beam[order], token[order], score[order])


def _same_rank(offered: dict[int, Iterator[_Grown]], own: int, real: tuple[int, int]) -> list[_Grown]:
    """Of each lineage the continuation of the real one's rank."""
    before: list[_Grown] = []
    for one in offered.pop(own):
        if (one.beam, one.token) == real:
            others = {lineage: next(islice(those, len(before), None), None) for lineage, those in offered.items()}
            found = {own: one} | {lineage: other for lineage, other in others.items() if other is not None}
            return [found[lineage] for lineage in sorted(found)]
        before.append(one)
    return []


def _first_fit(
    offered: dict[int, Iterator[_Grown]], value_of: Callable[[_Grown], Value], real: tuple[int, int]
) -> list[_Grown]:
    """The real one's cohort. Each continuation, likeliest first, goes to the first without its lineage and value."""
    every = [(one, lineage) for lineage, those in offered.items() for one in those]
    every.sort(key=lambda pair: -pair[0].score)
    taken: dict[object, int] = {}  # by lineage and by value, a bit for each cohort that has it
    cohorts: dict[int, list[_Grown]] = {}
    wanted = 0
    for one, lineage in every:
        value = value_of(one)
        used = taken.get(lineage, 0) | taken.get(value, 0)
        bit = ~used & (used + 1)
        taken[lineage] = taken.get(lineage, 0) | bit
        taken[value] = taken.get(value, 0) | bit
        cohorts.setdefault(bit, []).append(one)
        if (one.beam, one.token) == real:
            wanted = bit
    return cohorts.get(wanted, [])


def sampling(
    model: LanguageModel,
    beginning: Sequence[int],
    slots: Sequence[Slot],
    quantization: Quantization,
    *,
    fitting: Fitting,
) -> Generator[int, None, Sampled]:
    """The secrets' class, a piece at a time (`_Search.run`). Closed early, it leaves nothing."""
    length = len(beginning) + sum(len(slot.bridge) + len(slot.target) for slot in slots)
    if length > model.max_context:
        message = f"Sampling needs {length} tokens of context; the sampling model has {model.max_context}."
        hint = "Shorten the prompt or the secret, or sample with a model of a longer context."
        raise PromptTooLong(message, hint=hint)
    with model.branches(beginning, quantization.temperature) as branches:
        return (yield from _Search(branches, slots, quantization.lambda_max + 1, fitting).run())


Result = TypeVar("Result")


def finished(work: Generator[int, None, Result]) -> Result:
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: Result = end.value
            return result
