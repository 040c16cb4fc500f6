"""Adversaries who read all λ+1 prompts, score each and bet on the highest. By chance a bet is right once in λ+1.

They know the code, all lists and settings, but not the request's key: the sampling model; a second one; the quotient of
both, with the exact probability that each prompt would have drawn the others (optimal, if the second model is right);
word lists and a calendar; letters; sizes. Not here: answers, which greedy decoding makes of the prompts; time and the
order of ends, which the level makes equal (vault/test_obfuscating.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import log
from typing import Protocol

from cloister.obfuscation.gqs import finished
from cloister.obfuscation.language_model import LanguageModel
from cloister.obfuscation.tags import Category
from cloister.obfuscation.variants import Substitutes
from cloister_bench.obfuscation.word_lists import WordLists

ORDER = 4
_LESS = 0.4  # what a shorter context counts for (stupid backoff)
_BEGIN = "\n\n"  # before a text: what it begins with is predicted, too

Reader = Callable[[Sequence[str]], list[float]]  # ln P of texts, up to a term that all have


class Encoder(Protocol):
    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]: ...


@dataclass(frozen=True, slots=True, repr=False)
class Trial:
    """The real prompt and its values first."""

    group: str
    texts: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]
    categories: tuple[Category, ...]
    found: Substitutes


def right(scores: Sequence[float]) -> float:
    """Whether the highest is the first, the real one; a part where it draws among several of one score."""
    return 1 / list(scores).count(max(scores)) if scores[0] == max(scores) else 0.0


def rank(scores: Sequence[float]) -> float:
    """The share of the others that the real one is above: 0.5 on average where it is exchangeable."""
    others = scores[1:]
    return sum((scores[0] > one) + (scores[0] == one) / 2 for one in others) / len(others)


class Letters:
    """Which letters follow four others, counted from texts: it knows a field's words without a language model."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._counts: Counter[str] = Counter()
        for text in texts:
            for length in range(1, ORDER + 2):
                self._counts.update(text[at : at + length] for at in range(len(text) - length + 1))
        self._total = sum(count for run, count in self._counts.items() if len(run) == 1)

    def logprob(self, text: str) -> float:
        return sum(self._letter(text[max(0, at - ORDER) : at], text[at]) for at in range(len(text)))

    def _letter(self, context: str, letter: str) -> float:
        less = 0.0
        while context:
            if (seen := self._counts[context + letter]) > 0:
                return less + log(seen / self._counts[context])
            context, less = context[1:], less + log(_LESS)
        return less + log((self._counts[letter] + 0.5) / (self._total + 1))


def reader_of(model: LanguageModel, tokenizer: Encoder) -> Reader:
    """With the token that a text begins with, without which some models (Gemma) predict hardly anything."""

    def read(texts: Sequence[str]) -> list[float]:
        encoded = [tokenizer.encode(_BEGIN + text, add_special_tokens=True) for text in texts]
        shared = _alike([row[:-1] for row in encoded])
        return finished(model.likelihoods(encoded[0][:shared], [row[shared:] for row in encoded]))

    return read


@dataclass(slots=True)
class Adversaries:
    sampling: Reader
    letters: Letters
    lists: WordLists
    second: Reader | None = None

    def scores(self, trial: Trial) -> dict[str, list[float]]:
        found, likely = trial.found, list(trial.found.likelihoods)
        # What was drawn by whole prompts has their probabilities.
        read = list(found.logprobs) if set(found.methods) == {"exchangeable"} else self.sampling(trial.texts)
        drawn_by = list(found.logprobs) or read
        scores = {
            "sampling model": read,
            "word lists, calendar": [self._listed(trial.categories, values) for values in trial.values],
            "letters": [self.letters.logprob(text) for text in trial.texts],
            "sizes": [float(len(text.encode())) for text in trial.texts],
        }
        if likely:
            scores["sampler again"] = _sum(drawn_by, likely)
            scores["sampler again, even prior"] = _sum(likely, [0.0] * len(likely))
        if self.second is not None:
            other = self.second(trial.texts)
            scores["second model"] = other
            scores["second model, value alone"] = self.second(until_values(trial.texts))
            scores["second ÷ sampling model"] = _sum(other, likely or [-each for each in drawn_by])
        return scores

    def _listed(self, categories: Sequence[Category], values: Sequence[str]) -> float:
        return sum(self.lists.score(*pair) for pair in zip(categories, values, strict=True))


def until_values(texts: Sequence[str]) -> list[str]:
    """Without what all end with."""
    ends = _alike([text[::-1] for text in texts])
    return [text[: len(text) - ends] for text in texts]


def _alike(rows: Sequence[Sequence[object]]) -> int:
    """How much all begin with."""
    return next((at for at, those in enumerate(zip(*rows, strict=False)) if len(set(those)) > 1), min(map(len, rows)))


def _sum(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [round(a + b, 9) for a, b in zip(one, other, strict=True)]
