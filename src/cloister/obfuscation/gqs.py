"""Greedy Quantized Sampling (§5.1, Algorithm 1): token by token, the tokens whose probability falls into the bin of the
authentic token's, over all candidates so far; at most λ_max are kept.

Where a bin holds fewer than there is room for, the tokens nearest to it are taken as well (`widen`): of a long secret
each token would have to fall into a bin of its own, and hardly any does, while the product of their probabilities is as
near as can be. Bins have the width ε' = ε/n for n tokens. Distance is absolute, as in the paper
(|P(fake) − P(real)| < ε, Theorem 5.1), or relative: bins of log-probabilities, |ln P(fake) − ln P(real)| < ε. The bound
is checked for every sample; one that misses it is dropped.

Several secrets, and the words of one, are sampled together as one long one: what stands between them is given, not
sampled, and in the model's sight with the substitutes before it. No two candidates have one of them in common. n counts
the tokens of all, so ε bounds the difference of the joint probabilities: by the chain rule, without the paper's
assumption that secrets are independent.

Knows tokens, no text: who asks says which tokens may stand where a secret stood (`Fitting`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from cloister.errors import PromptTooLong
from cloister.obfuscation.language_model import Branches, LanguageModel, LogProbs
from cloister.obfuscation.quantization import Quantization

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Stands = Callable[[tuple[tuple[int, ...], ...]], bool]

SPARE = 2
"""How many times more are looked at than kept: some are refused by `accept`."""
BEYOND = np.float32(1e4)
"""Added to the rank of what lies beyond the bin: more than log-probabilities differ by."""


@dataclass(frozen=True, slots=True, repr=False)
class Slot:
    """Tokens of a secret or of one of its words, and the given tokens between those before and these.

    `stem`: no two candidates begin alike, nor as the secret does; otherwise they differ somewhere."""

    target: tuple[int, ...]
    bridge: tuple[int, ...] = ()
    stem: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class Candidate:
    """A substitute for each slot, and the log-probability of all their tokens."""

    values: tuple[tuple[int, ...], ...]
    logprob: float


@dataclass(frozen=True, slots=True, repr=False)
class Sampled:
    """The candidates, likeliest first; `found[k]`: how many there were when the k-th slot was done."""

    reference: float
    candidates: tuple[Candidate, ...]
    found: tuple[int, ...]


class Fitting(Protocol):
    """What may stand in the so-manieth slot. `last`: with the next token it is whole."""

    def allowed(self, number: int, value: tuple[int, ...], last: bool) -> npt.NDArray[np.bool_]:
        """[vocabulary]: the tokens that may follow."""

    def accept(self, number: int, value: tuple[int, ...], last: bool) -> bool:
        """Whether these tokens may stand there, the last one included."""

    def stands(self, values: tuple[tuple[int, ...], ...]) -> bool:
        """Whether what the first slots were filled with may stand in its place in the text."""


@dataclass(slots=True)
class _Beams:
    """What is kept so far. A lineage is the beams that agree on all slots that are done, and on the stem of the next.

    `parent` and `token`: which beam of the step before each came from, and with which token.
    """

    done: list[tuple[tuple[int, ...], ...]]
    value: list[tuple[int, ...]]
    logprob: Floats
    lineage: Ints
    parent: Ints
    token: Ints

    def __len__(self) -> int:
        return len(self.value)

    def only(self, kept: list[int]) -> _Beams:
        done, value = [self.done[at] for at in kept], [self.value[at] for at in kept]
        return _Beams(done, value, self.logprob[kept], self.lineage[kept], self.parent[kept], self.token[kept])


class _Search:
    """One run of the algorithm. The model's first branch is always the real text; the others are the beams."""

    def __init__(
        self,
        branches: Branches,
        slots: Sequence[Slot],
        quantization: Quantization,
        fitting: Fitting,
        lineages: int,
    ) -> None:
        self._branches, self._slots, self._by = branches, slots, quantization
        self._fitting, self._lineages = fitting, lineages
        self._tokens = sum(len(slot.target) for slot in slots)
        self._reference = 0.0
        none = np.zeros(1, dtype=np.int64)
        self._beams = _Beams([()], [()], np.zeros(1), none, none, none)
        self._rows: Iterator[LogProbs] = branches.first()
        self._apart = False
        """Whether the real text has a branch of its own yet."""
        self._parted = False
        """Whether there are lineages yet."""

    def run(self) -> Generator[int, None, Sampled]:
        """Before each piece that the model computes, how many tokens it has at most."""
        found = [0] * len(self._slots)
        for number, slot in enumerate(self._slots):
            for place, token in enumerate(slot.target, 1):
                last = place == len(slot.target)
                yield from self._step(number, token, last, goes_on=slot.stem and place > 1)
                bridge: tuple[int, ...] = ()
                if slot.stem and place == 1 and not last:
                    self._part(self._distinct(self._lineages))
                if last:
                    self._end_slot(number)
                    found[number] = len(self._beams)
                    if number + 1 == len(self._slots):
                        break
                    bridge = self._slots[number + 1].bridge
                if not len(self._beams):
                    return Sampled(self._reference, (), tuple(found))
                self._follow((token, *bridge), bridge)
        return Sampled(self._reference, self._checked(), tuple(found))

    def _step(self, number: int, token: int, last: bool, goes_on: bool) -> Generator[int, None, None]:
        """Lines 8–14 for one token of the secret; whether a word goes on whose beginning is no other's."""
        beams, by = self._beams, self._by
        quota = max(1, by.lambda_max // max(1, len(set(beams.lineage.tolist()))))
        taken: list[tuple[Floats, Floats, Ints, Ints]] = []
        low = high = target = 0.0
        at, begun = 0, False
        while self._branches.left:
            yield self._branches.left
            rows = next(self._rows)
            if not len(rows):
                continue
            if not begun:
                begun = True
                reference = float(rows[0, token])
                low, high = by.bin(reference, self._tokens)
                target = self._reference + reference
                rows = rows[1:] if self._apart else rows
            if len(rows):
                values = beams.value[at : at + len(rows)]
                allowed = np.stack([self._fitting.allowed(number, value, last) for value in values])
                some = np.flatnonzero(allowed.any(axis=0))  # of a vocabulary few tokens have a secret's shape
                fitting, likely = allowed[:, some], rows[:, some]
                inside = (likely > low) & (likely <= high)
                taken_from = fitting if by.widen else fitting & inside
                freely = self._freely(at, len(rows), last) if goes_on else None
                scores, totals, beam_numbers, columns = self._best_of(
                    likely, at, taken_from, inside, target, quota * SPARE, freely
                )
                taken.append((scores, totals, beam_numbers, some[columns]))
            at += len(rows)
        self._reference = target
        score, logprob, beam, chosen = (np.concatenate(part) for part in zip(*taken, strict=True))
        order = np.argsort(-score, kind="stable")
        if by.keep == "around" and not goes_on:
            order = by_turns(order, logprob > target)  # be the other side beyond the bin
        self._choose(number, last, quota, order, logprob, beam, chosen)

    def _best_of(
        self,
        rows: LogProbs,
        first: int,
        fitting: npt.NDArray[np.bool_],
        inside: npt.NDArray[np.bool_],
        target: float,
        most: int,
        freely: npt.NDArray[np.bool_] | None,
    ) -> tuple[Floats, Floats, Ints, Ints]:
        """Line 12 for some beams: of each at most `most` tokens, those in the bin first, with their ranks. So many on
        either side where they are taken around the real one. Those that go on `freely` take the likeliest."""
        total = rows + self._beams.logprob[first : first + len(rows), None].astype(np.float32)
        near = -np.abs(total - np.float32(target))
        score = np.where(inside, total if self._by.keep == "likeliest" else near, near - BEYOND)
        wishes = [score]
        if freely is not None:
            score = np.where(freely[:, None], total, score)
            wishes = [score]
        elif self._by.keep == "around":
            likelier = total > np.float32(target)
            wishes = [np.where(likelier, score, -np.inf), np.where(likelier, -np.inf, score)]
        taken = np.zeros(score.shape, dtype=np.bool_)
        for wish in wishes:
            taken |= _best(np.where(fitting, wish, -np.inf), most)
        each, flat = np.nonzero(taken)
        exact = self._beams.logprob[first + each] + rows[each, flat].astype(np.float64)
        return score[each, flat].astype(np.float64), exact, first + each, flat

    def _freely(self, first: int, count: int, last: bool) -> npt.NDArray[np.bool_] | None:
        """Of some beams, those that go on as the model would. A word that is brought near the real one's probability
        early ends far below it, for a right word's last tokens are nearly certain. Every other lineage ends so, too,
        and the others as near as they can."""
        if self._by.keep != "around":
            return None
        lineages = self._beams.lineage[first : first + count]
        return np.full(count, fill_value=True) if not last else lineages % 2 == 0

    def _choose(
        self, number: int, last: bool, quota: int, order: Ints, logprob: Floats, beam: Ints, chosen: Ints
    ) -> None:
        """Keep the best of every lineage that may stand there."""
        beams, room = self._beams, dict.fromkeys(self._beams.lineage.tolist(), quota)
        left = sum(room.values())
        kept: list[int] = []
        grown: list[tuple[int, ...]] = []
        for at in order.tolist():
            lineage = int(beams.lineage[beam[at]])
            if not room[lineage]:
                continue
            value = (*beams.value[beam[at]], int(chosen[at]))
            if self._fitting.accept(number, value, last):
                room[lineage] -= 1
                left -= 1
                kept.append(at)
                grown.append(value)
                if not left:
                    break
        parents = beam[kept]
        self._beams = _Beams(
            [beams.done[parent] for parent in parents.tolist()],
            grown,
            logprob[kept],
            beams.lineage[parents],
            parents,
            chosen[kept],
        )

    def _end_slot(self, number: int) -> None:
        """A slot is done. Keep beams that differ in every one of them: the real one does, too."""
        ended = number + 1 == len(self._slots)
        beams = self._part(self._distinct(len(self._beams) if ended else self._lineages, self._fitting.stands))
        beams.done = [(*done, value) for done, value in zip(beams.done, beams.value, strict=True)]
        beams.value = [()] * len(beams.done)

    def _part(self, kept: list[int]) -> _Beams:
        """Of the beams only these, each a lineage of its own."""
        self._beams, self._parted = self._beams.only(kept), True
        self._beams.lineage = np.arange(len(kept), dtype=np.int64)
        return self._beams

    def _distinct(self, most: int, stands: Stands | None = None) -> list[int]:
        """One beam of each lineage, if there are any, and no value twice; the nearest first, on both sides."""
        beams = self._beams
        order = np.argsort(np.abs(beams.logprob - self._reference), kind="stable")
        if self._by.keep == "around" and not self._parted:
            order = by_turns(order, beams.logprob > self._reference)
        kept: list[int] = []
        lineages: set[int] = set()
        values: set[tuple[int, ...]] = set()
        for at in order.tolist():
            lineage, value = int(beams.lineage[at]), beams.value[at]
            if (self._parted and lineage in lineages) or value in values:
                continue
            if stands is not None and not stands((*beams.done[at], value)):
                continue
            lineages.add(lineage)
            values.add(value)
            kept.append(at)
            if len(kept) == most:
                break
        return kept

    def _follow(self, real: tuple[int, ...], bridge: tuple[int, ...]) -> None:
        """Let the model's branches be the real text and the beams, each with its new token and a bridge after it."""
        offset = 1 if self._apart else 0
        self._apart = True
        tokens = [real, *((token, *bridge) for token in self._beams.token.tolist())]
        self._rows = self._branches.grow([0, *(self._beams.parent + offset).tolist()], tokens)

    def _checked(self) -> tuple[Candidate, ...]:
        """Theorem 5.1, sample by sample."""
        pairs = zip(self._beams.done, self._beams.logprob.tolist(), strict=True)
        kept = [Candidate(values, logprob) for values, logprob in pairs if self._by.holds(logprob, self._reference)]
        return tuple(sorted(kept, key=lambda one: -one.logprob))


def _best(score: npt.NDArray[np.float32], most: int) -> npt.NDArray[np.bool_]:
    """Of each row the `most` best, none of them -inf."""
    found = np.isfinite(score)
    if most < score.shape[1]:
        left = np.argpartition(-score, most - 1, axis=1)[:, most:]
        np.put_along_axis(found, left, values=False, axis=1)
    return found


def by_turns(order: Ints, likelier: npt.NDArray[np.bool_]) -> Ints:
    """The same numbers: one of the likelier and one of the others by turns, each in their order, then what is left."""
    above = likelier[order]
    turn = np.where(above, 2 * np.cumsum(above), 2 * np.cumsum(~above) + 1)
    found: Ints = order[np.argsort(turn, kind="stable")]
    return found


def sample(
    model: LanguageModel,
    beginning: Sequence[int],
    slots: Sequence[Slot],
    quantization: Quantization,
    *,
    fitting: Fitting,
    lineages: int = 64,
) -> Sampled:
    """S_fake for these secrets after the formatted beginning. Of several words at most `lineages` are kept."""
    return finished(sampling(model, beginning, slots, quantization, fitting=fitting, lineages=lineages))


def sampling(
    model: LanguageModel,
    beginning: Sequence[int],
    slots: Sequence[Slot],
    quantization: Quantization,
    *,
    fitting: Fitting,
    lineages: int,
) -> Generator[int, None, Sampled]:
    """The same a piece at a time, for who computes in turns: `_Search.run`. Closed early, it leaves nothing."""
    length = len(beginning) + sum(len(slot.bridge) + len(slot.target) for slot in slots)
    if length > model.max_context:
        raise PromptTooLong(
            f"Sampling needs {length} tokens of context; the sampling model has {model.max_context}.",
            hint="Shorten the prompt or the secret, or sample with a model of a longer context.",
        )
    with model.branches(beginning, quantization.temperature) as branches:
        return (yield from _Search(branches, slots, quantization, fitting, lineages).run())


Result = TypeVar("Result")


def finished(work: Generator[int, None, Result]) -> Result:
    """What comes of work that is done piece by piece, done in one go."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: Result = end.value
            return result
