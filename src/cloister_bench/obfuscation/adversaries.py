"""Adversaries who read all λ+1 prompts and score each; they bet on the highest or the lowest (of the sampling model's
also the middle), fixed beforehand. By chance a bet is right once in λ+1; what is beyond that is its advantage.

They have: the sampling model's probabilities; the sampler (`rerun`); whole prompts under the serving model, as a thief
of the service's memory does (redteam/test_layer_zero.py); answers; another model (`Letters`); sizes in bytes. Not here:
time and the order of ends, which the level makes equal (vault/test_obfuscating.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import log

from cloister.obfuscation.language_model import LanguageModel, SamplingTokenizer
from cloister_bench.suite.documents import wilson

QUESTION = "\n\nWhat is this note about?"
AFTER_CHARACTERS = 100  # after the secret, read by the adversary
ANSWER_TOKENS = 10

ORDER = 4
_LESS = 0.4  # what a shorter context counts for (stupid backoff)

Scores = dict[str, list[float]]  # by adversary, one for each prompt


BETS = ("highest", "lowest", "middle")


def right(bet: str, scores: Sequence[float]) -> float:
    """Whether a bet finds the first, the real one; a part where it draws among several of one score."""
    ordered = sorted(scores)
    wanted = {"highest": ordered[-1], "lowest": ordered[0], "middle": ordered[len(ordered) // 2]}[bet]
    return 1 / list(scores).count(wanted) if scores[0] == wanted else 0.0


@dataclass(frozen=True, slots=True)
class Guesses:
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


class Letters:
    """Which letters follow four others, counted from texts: it knows a field's words without the sampling model."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._counts: Counter[str] = Counter()
        for text in texts:
            for length in range(1, ORDER + 2):
                self._counts.update(text[at : at + length] for at in range(len(text) - length + 1))
        self._total = sum(count for run, count in self._counts.items() if len(run) == 1)

    def logprob(self, before: str, words: str, after: str) -> float:
        text = before[-ORDER:] + words + after
        return sum(
            self._letter(text[max(0, at - ORDER) : at], text[at]) for at in range(len(before[-ORDER:]), len(text))
        )

    def _letter(self, context: str, letter: str) -> float:
        less = 0.0
        while context:
            if (seen := self._counts[context + letter]) > 0:
                return less + log(seen / self._counts[context])
            context, less = context[1:], less + log(_LESS)
        return less + log((self._counts[letter] + 0.5) / (self._total + 1))


@dataclass(frozen=True, slots=True, repr=False)
class Trial:
    """The real value first. `sampled`: log-probabilities by the sampling model; `reran`: of the whole set."""

    before: str
    after: str
    values: list[str]
    sampled: list[float]
    reran: list[float] = field(default_factory=list)

    def texts(self) -> list[str]:
        return [f"{self.before}{value}{self.after[:AFTER_CHARACTERS]}" for value in self.values]


@dataclass(frozen=True, slots=True)
class Reading:
    prompt: float
    answer: tuple[int, ...] = ()
    likelihood: float = 0.0


@dataclass(slots=True)
class Adversaries:
    """`serving` answers, and reads prompts; `letters` and `other` know them from elsewhere."""

    serving: LanguageModel
    tokenizer: SamplingTokenizer
    letters: Letters
    other: Callable[[Sequence[str]], list[float]] | None = None
    stops: frozenset[int] = field(default_factory=frozenset)

    def scores(self, trial: Trial) -> Scores:
        readings = self._readings(trial.texts())
        answers = [self.tokenizer.decode(reading.answer) for reading in readings]
        named = [value.split()[-1].casefold() for value in trial.values]
        scores = {
            "sampling model": trial.sampled,
            "whole prompts": [reading.prompt for reading in readings],
            "answers, likelihood": [reading.likelihood for reading in readings],
            "answers, mentions": [
                float(answer.casefold().count(name)) for answer, name in zip(answers, named, strict=True)
            ],
            "another model, letters": [
                self.letters.logprob(trial.before, value, trial.after[:4]) for value in trial.values
            ],
            "sizes, prompt": [float(len(value.encode())) for value in trial.values],
            "sizes, answer": [float(len(answer.encode())) for answer in answers],
        }
        if trial.reran:
            scores["sampler again"] = trial.reran
        if self.other is not None:
            scores["another model"] = self.other(trial.texts())
        return scores

    def _readings(self, texts: Sequence[str]) -> list[Reading]:
        prompts = [self.tokenizer.render_chat([{"role": "user", "content": text + QUESTION}]) for text in texts]
        return read_all(self.serving, prompts, ANSWER_TOKENS, self.stops)


def reader_of(model: LanguageModel, tokenizer: SamplingTokenizer) -> Callable[[Sequence[str]], list[float]]:
    def reads(texts: Sequence[str]) -> list[float]:
        return [reading.prompt for reading in read_all(model, [tokenizer.encode(text) for text in texts], 0)]

    return reads


def read_all(
    model: LanguageModel, prompts: Sequence[Sequence[int]], answer_tokens: int, stops: frozenset[int] = frozenset()
) -> list[Reading]:
    """All prompts, those of one length together. Their common beginning carries no information and is computed once."""
    common = 0
    while common < min(map(len, prompts)) - 1 and len({prompt[common] for prompt in prompts}) == 1:
        common += 1
    found: dict[int, Reading] = {}
    for length in sorted({len(prompt) for prompt in prompts}):
        those = [at for at, prompt in enumerate(prompts) if len(prompt) == length]
        rows = [prompts[at][common:] for at in those]
        found |= zip(those, _read(model, prompts[0][:common], rows, answer_tokens, stops), strict=True)
    return [found[at] for at in range(len(prompts))]


def _read(
    model: LanguageModel,
    beginning: Sequence[int],
    rows: Sequence[Sequence[int]],
    answer_tokens: int,
    stops: frozenset[int],
) -> list[Reading]:
    count = len(rows)
    prompt, likelihood = [0.0] * count, [0.0] * count
    answers: list[list[int]] = [[] for _ in rows]
    ended = [False] * count
    with model.branches(beginning, 1.0) as branches:
        *_, first = branches.first()
        scores = [first[0]] * count
        parents = [0] * count
        for step in range(len(rows[0]) + answer_tokens):
            tokens = [
                row[step] if step < len(row) else int(score.argmax()) for row, score in zip(rows, scores, strict=True)
            ]
            for at, token in enumerate(tokens):
                if step < len(rows[0]):
                    prompt[at] += float(scores[at][token])
                elif not ended[at]:
                    likelihood[at] += float(scores[at][token])
                    ended[at] = token in stops
                    answers[at] += [] if ended[at] else [token]
            if step + 1 < len(rows[0]) + answer_tokens:
                scores = [row for some in branches.grow(parents, [(token,) for token in tokens]) for row in some]
            parents = list(range(count))
    return [
        Reading(total, tuple(answer), said / (len(answer) or 1))
        for total, answer, said in zip(prompt, answers, likelihood, strict=True)
    ]
