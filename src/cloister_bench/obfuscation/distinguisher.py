"""How often a bet is right. By chance once in λ+1; what is beyond that is its advantage, with a 95% confidence interval
(Wilson)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cloister.obfuscation.language_model import LanguageModel
from cloister_bench.suite.documents import wilson

BETS = ("highest", "lowest", "middle")


def right(bet: str, scores: Sequence[float]) -> float:
    """Whether a bet finds the first, which is the real one; a part where it draws among several of one score."""
    ordered = sorted(scores)
    wanted = {"highest": ordered[-1], "lowest": ordered[0], "middle": ordered[len(ordered) // 2]}[bet]
    return 1 / list(scores).count(wanted) if scores[0] == wanted else 0.0


@dataclass(frozen=True, slots=True)
class Guesses:
    """How often a bet was right, of how many prompts with `fakes` fakes each."""

    right: float
    of: int
    fakes: int

    @property
    def advantage(self) -> float:
        return self.right / self.of - 1 / (self.fakes + 1)

    @property
    def interval(self) -> tuple[float, float]:
        """Of the advantage, 95%."""
        low, high = wilson(self.right, self.of)
        return low - 1 / (self.fakes + 1), high - 1 / (self.fakes + 1)


def score(model: LanguageModel, beginning: Sequence[int], values: Sequence[Sequence[int]]) -> list[float]:
    """The log-probability of each value after the beginning, which is computed once."""
    total, longest = [0.0] * len(values), max(map(len, values))
    with model.branches(beginning, 1.0) as branches:
        *_, first = branches.first()
        rows = [first[0]] * len(values)
        parents = [0] * len(values)
        for step in range(longest):
            for at, value in enumerate(values):
                total[at] += float(rows[at][value[step]]) if step < len(value) else 0.0
            if step + 1 < longest:  # those that have ended go on with anything
                tokens = [(value[min(step, len(value) - 1)],) for value in values]
                rows = [row for some in branches.grow(parents, tokens) for row in some]
            parents = list(range(len(values)))
    return total
