"""An adversary who reads all λ+1 prompts and has the sampling model: it bets on one by the values' probabilities.

Three bets are fixed beforehand: the likeliest, the least likely, the one in the middle. Each is right once in λ+1 by
chance; what it gains beyond that is its advantage, with a 95% confidence interval (Wilson).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cloister.bench.suite.intervals import wilson
from cloister.obfuscation.language_model import LanguageModel

Bet = Callable[[Sequence[float]], int]

BETS: dict[str, Bet] = {
    "likeliest": lambda scores: max(range(len(scores)), key=lambda at: scores[at]),
    "least likely": lambda scores: min(range(len(scores)), key=lambda at: scores[at]),
    "middle": lambda scores: sorted(range(len(scores)), key=lambda at: scores[at])[len(scores) // 2],
}


@dataclass(frozen=True, slots=True)
class Guesses:
    """How often a bet was right, of how many prompts with `fakes` fakes each."""

    right: int
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
    """The log-probability of each value after the beginning."""
    found = []
    for value in values:
        with model.branches(beginning, 1.0) as branches:
            *_, rows = branches.first()
            total = 0.0
            for token in value[:-1]:
                total += float(rows[0, token])
                [rows] = branches.grow([0], [(token,)])
            found.append(total + float(rows[0, value[-1]]))
    return found
