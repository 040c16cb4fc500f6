"""Measures the parts. Knows a model with its tokenizer, and texts; not where they come from."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from statistics import mean, stdev
from time import monotonic, process_time
from typing import Any, Protocol

from cloister.errors import TagsInvalid
from cloister.obfuscation.blocks import drawn, runs_of
from cloister.obfuscation.entities import entities_of, swapped
from cloister.obfuscation.gqs import Quantization, Sampled, finished
from cloister.obfuscation.index import Prf
from cloister.obfuscation.infilling import Infilling
from cloister.obfuscation.language_model import LanguageModel, SamplingTokenizer, TokenShapes
from cloister.obfuscation.quantized import block_for, class_of
from cloister.obfuscation.tags import Category, TaggedText
from cloister_bench.obfuscation.adversaries import (
    BETS,
    Adversaries,
    Guesses,
    Letters,
    Trial,
    read_all,
    reader_of,
    right,
)
from cloister_bench.obfuscation.decoding import Ask, time_between_tokens, vault_memory
from cloister_bench.obfuscation.rerun import Rerun
from cloister_bench.obfuscation.results import Part, Plan, Results
from cloister_bench.suite.measurement import Measurement, Watcher

Texts = Mapping[Category, list[TaggedText]]
_TITLES, _NAMES = ("Dr.", "Mr.", "Mrs.", "Ms."), "Quill Oberon Zephyr Thorne Vexley Quandt Ibsen Yarrow Pexton Wolde"
RANDOM_WORDS = tuple(f"{title} {name}" for title in _TITLES for name in _NAMES.split())  # the naive baseline


class SamplingModel(Protocol):
    @property
    def continuations(self) -> LanguageModel: ...

    @property
    def tokenizer(self) -> SamplingTokenizer: ...


class Bench(Measurement[Results]):
    """What does not fit the plan's time is left out and said."""

    def __init__(
        self,
        results: Results,
        model: SamplingModel,
        texts: Texts,
        letters: Letters,
        watcher: Watcher,
        save: Callable[[], None],
        other: SamplingModel | None = None,
        server: Callable[[], AbstractContextManager[Ask]] | None = None,
    ) -> None:
        super().__init__(results, watcher, save)
        self._plan: Plan = results.plan
        self._model, self._tokenizer = model.continuations, model.tokenizer
        self._shapes = TokenShapes(self._tokenizer, self._model.vocabulary)
        self._texts = texts
        self._server = server
        reads = None if other is None else reader_of(other.continuations, other.tokenizer)
        self._adversaries = Adversaries(
            self._model, self._tokenizer, letters, reads, frozenset(self._tokenizer.special)
        )

    def run(self, wanted: Collection[Part]) -> None:
        parts: dict[Part, Callable[[], None]] = {
            "curves": self._curves,
            "latency": self._latency,
            "distinguisher": self._distinguisher,
            "decoding": self._decoding,
        }
        for part, measure in parts.items():
            if part in wanted:
                with self._noting(part):
                    measure()

    def _infilling(self, text: TaggedText) -> Infilling | None:
        """None where the text cannot be sampled for: a secret that runs into what stands beside it."""
        try:
            return Infilling(self._tokenizer, self._shapes, [text], entities_of([text]))
        except TagsInvalid:
            return None

    def _sample(self, infilling: Infilling, by: Quantization) -> Sampled:
        return finished(class_of(self._model, infilling, by))

    def _count(self, infilling: Infilling, by: Quantization) -> int:
        found = self._sample(infilling, by)
        runs = ([one.values for one in run] for run in runs_of(found.members, by))
        return next((len(run) - 1 for run in runs if found.secret in run), 0)

    def _curves(self) -> None:
        """Figures 5–7: how many substitutes there are within ε."""
        plan = self._plan
        turns = _in_turns(self._texts, plan.secrets)
        self._watcher.begin("curves", len(turns))
        found: dict[tuple[Category, float], list[int]] = {}
        for category, text in turns:
            infilling = self._infilling(text)
            for epsilon in plan.epsilons if infilling else ():
                assert infilling is not None
                if self._fits("curves"):
                    by = Quantization(epsilon, plan.lambda_max, plan.temperature)
                    count = self._count(infilling, by)
                    found.setdefault((category, epsilon), []).append(count)
            self._watcher.advance(str(category))
        self._results.curves = [
            {"category": str(category), "epsilon": epsilon, "secrets": len(counts), **_spread(counts)}
            for (category, epsilon), counts in found.items()
        ]

    def _latency(self) -> None:
        """Figure 13: seconds for a secret of `tokens` tokens."""
        plan = self._plan
        longest = [(len(one.target(0)), one) for text in _all(self._texts) if (one := self._infilling(text))]
        if not longest:
            return
        tokens, infilling = min(longest, key=lambda pair: abs(pair[0] - plan.latency_tokens))
        self._watcher.begin("latency", len(plan.latency_lambdas) * len(plan.latency_epsilons))
        for epsilon in plan.latency_epsilons:
            for most in plan.latency_lambdas:
                if self._fits("latency"):
                    begun, spent = monotonic(), process_time()
                    count = self._count(infilling, Quantization(epsilon, most, plan.temperature))
                    row = {"tokens": tokens, "epsilon": epsilon, "lambda_max": most, "found": count}
                    took = {"seconds": round(monotonic() - begun, 3), "processor_s": round(process_time() - spent, 3)}
                    self._results.latency.append({**row, **took})
                self._watcher.advance(f"λ_max {most}")

    def _distinguisher(self) -> None:
        plan, draw = self._plan, random.Random(0)
        by = Quantization(plan.bet_epsilon, plan.bet_lambda_max, plan.temperature)
        rerun = Rerun(self._model, self._tokenizer, self._shapes, by, plan.fakes)
        names = self._texts.get(Category.NAME, [])
        rows: dict[tuple[str, str, str], list[float]] = {}
        self._watcher.begin("distinguisher", plan.trials)
        for number, text in enumerate(_all(self._texts)[: plan.trials]):
            infilling = self._infilling(text)
            if infilling is None or not self._fits("distinguisher"):
                continue
            found = self._sample(infilling, by)
            block = block_for(found, infilling, plan.fakes, by)
            chosen = drawn(found.secret, block, plan.fakes, Prf(number.to_bytes(32, "big")), b"bench")
            if len(chosen) == plan.fakes:
                words = [infilling.values(one.values)[0] for one in chosen]
                real = next(one for one in block if one.values == found.secret)
                again = rerun.scores([text, *(swapped([text], infilling.entities, [word])[0] for word in words)])
                self._bet(rows, "sampled", text, words, [one.logprob for one in (real, *chosen)], again)
            else:
                self._results.too_few += 1
            if text in names and plan.fakes <= len(RANDOM_WORDS):
                words = draw.sample(RANDOM_WORDS, plan.fakes)
                self._bet(rows, "random", text, words, self._scored(infilling, words))
            self._watcher.advance(str(number + 1))
            self._results.distinguisher = [
                _row(kind, who, bet, Guesses(sum(hits), len(hits), plan.fakes))
                for (kind, who, bet), hits in rows.items()
            ]

    def _decoding(self) -> None:
        """Figures 10 and 14."""
        plan = self._plan
        if self._server is None or not self._fits("decoding"):
            return
        self._watcher.begin("decoding", len(plan.users) * len(plan.decoded) + 1)
        with self._server() as asked:
            for users in plan.users:
                alone: float | None = None
                for fakes in plan.decoded:
                    took = time_between_tokens(asked, users, fakes, plan.tokens, plan.rounds)
                    alone = alone or took
                    row = {"users": users, "fakes": fakes, "ms": round(took, 2), "ratio": round(took / alone, 3)}
                    self._results.decoding.append(row)
                    self._watcher.advance(f"{users} users, λ = {fakes}")
            self._results.memory = vault_memory(asked, plan.decoded)
            self._watcher.advance("memory")

    def _scored(self, infilling: Infilling, words: list[str]) -> list[float]:
        """Log-probabilities of the real value and of these, as sampling has them, from where they differ."""
        lead = " " if self._tokenizer.decode(infilling.target(0)).startswith(" ") else ""
        values = [infilling.target(0), *(self._tokenizer.encode(lead + word) for word in words)]
        return [reading.prompt for reading in read_all(self._model, [[*infilling.before, *one] for one in values], 0)]

    def _bet(
        self,
        rows: dict[tuple[str, str, str], list[float]],
        kind: str,
        text: TaggedText,
        fakes: list[str],
        sampled: list[float],
        reran: Sequence[float] = (),
    ) -> None:
        [span] = text.spans
        values = [text.secret(span), *fakes]
        trial = Trial(text.text[: span.start], text.text[span.end :], values, sampled, list(reran))
        for who, scores in self._adversaries.scores(trial).items():
            for bet in BETS if who == "sampling model" else BETS[:2]:
                rows.setdefault((kind, who, bet), []).append(right(bet, scores))

    def _fits(self, part: str) -> bool:
        if self._elapsed < self._plan.seconds:
            return True
        if (said := f"{part}: not all, for lack of time") not in self._results.skipped:
            self._results.skipped.append(said)
        return False


def _in_turns(texts: Texts, most: int | None = None) -> list[tuple[Category, TaggedText]]:
    """`most` of each; by turns, so that a lack of time hits every category."""
    longest = max((len(each) for each in texts.values()), default=0)
    turns = range(longest if most is None else min(most, longest))
    return [(category, each[at]) for at in turns for category, each in texts.items() if at < len(each)]


def _all(texts: Texts) -> list[TaggedText]:
    return [text for _, text in _in_turns(texts)]


def _spread(counts: list[int]) -> dict[str, Any]:
    half = 1.96 * stdev(counts) / len(counts) ** 0.5 if len(counts) > 1 else 0.0
    middle = mean(counts)
    return {"mean": round(middle, 2), "low": round(max(0.0, middle - half), 2), "high": round(middle + half, 2)}


def _row(kind: str, who: str, bet: str, guesses: Guesses) -> dict[str, Any]:
    low, high = guesses.interval
    counted = {"fakes": kind, "adversary": who, "bet": bet, "right": round(guesses.right, 2), "of": guesses.of}
    return {**counted, "advantage": round(guesses.advantage, 4), "low": round(low, 4), "high": round(high, 4)}
