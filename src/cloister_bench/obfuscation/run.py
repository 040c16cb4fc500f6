"""Measures the parts. Knows models, methods and cases; not where they come from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from statistics import mean

from cloister.errors import CloisterError
from cloister.obfuscation.entities import add_mentions
from cloister.obfuscation.requests import Obfuscation
from cloister.obfuscation.tags import Category, TaggedText, parse_redacted, redacted
from cloister.obfuscation.variants import Substituting, make_variants
from cloister_bench.obfuscation.adversaries import Adversaries, Trial, rank, right
from cloister_bench.obfuscation.curves import Sampling, tasks
from cloister_bench.obfuscation.decoding import Ask, time_between_tokens
from cloister_bench.obfuscation.results import EXAMPLES, JOINT, Part, Plan, Results
from cloister_bench.obfuscation.sizes import sizes
from cloister_bench.obfuscation.texts import Case
from cloister_bench.suite.documents import Row, rate_of
from cloister_bench.suite.measurement import Measurement, Watcher

NewMethod = Callable[[bytes], Substituting]  # with the key that draws


@dataclass(frozen=True, slots=True)
class Material:
    methods: Mapping[str, NewMethod]
    cases: Mapping[Category, Sequence[Case]]
    joint: Sequence[Case]
    adversaries: Adversaries
    samplers: Sequence[Sampling] = ()


@dataclass(slots=True)
class Tally:
    """`bets`: by method, adversary and group, each bet and the real one's rank."""

    bets: dict[tuple[str, str, str], list[tuple[float, float]]] = field(default_factory=dict)
    exist: dict[tuple[str, str], list[tuple[bool, bool]]] = field(default_factory=dict)  # (is it the real one, exists)
    tried: Counter[tuple[str, str]] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)

    def rows(self) -> list[Row]:
        whole: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
        for (method, who, group), bets in self.bets.items():
            whole.setdefault((method, who, group), []).extend(bets)
            if group != JOINT:
                whole.setdefault((method, who, "all"), []).extend(bets)
        return [
            {
                **{"method": method, "adversary": who, "group": group},
                **{"right": round(sum(hit for hit, _ in bets), 2), **rate_of(sum(hit for hit, _ in bets), len(bets))},
                "rank": round(mean(place for _, place in bets), 3),
            }
            for (method, who, group), bets in sorted(whole.items())
        ]

    def believed(self) -> list[Row]:
        rows: list[Row] = []
        for (method, group), tried in sorted(self.tried.items()):
            real, fakes = (
                [yes for first, yes in self.exist.get((method, group), ()) if first is side] for side in (True, False)
            )
            shares = {"real_exist": _share(real), "fakes_exist": _share(fakes)}
            rows.append(
                {"method": method, "group": group, "tried": tried, "refused": self.refused[method, group], **shares}
            )
        return rows


class Bench(Measurement[Results]):
    """What does not fit the plan's time is left out and said."""

    def __init__(
        self,
        results: Results,
        material: Material,
        watcher: Watcher,
        save: Callable[[], None],
        server: Callable[[], AbstractContextManager[Ask]] | None = None,
    ) -> None:
        super().__init__(results, watcher, save)
        self._plan: Plan = results.plan
        self._of, self._server = material, server
        self.tally = Tally()
        self.trials: list[tuple[str, Trial]] = []  # for a reader

    def run(self, wanted: Collection[Part]) -> None:
        parts: dict[Part, Callable[[], None]] = {
            "distinguisher": self._distinguisher,
            "repetition": self._repetition,
            "examples": self._examples,
            "lists": self._lists,
            "curves": self._curves,
            "decoding": self._decoding,
        }
        for part, measure in parts.items():
            if part in wanted:
                with self._noting(part):
                    measure()

    def _distinguisher(self) -> None:
        """By turns, so that a lack of time hits every category and method."""
        plan, groups = (
            self._plan,
            {**{str(each): those for each, those in self._of.cases.items()}, JOINT: self._of.joint},
        )
        turns = [
            (number, method, group, cases[number])
            for number in range(max(plan.trials.values()))
            for group, cases in groups.items()
            for method, most in plan.trials.items()
            if number < min(most, len(cases)) and method in self._of.methods
        ]
        self._watcher.begin("distinguisher", len(turns))
        done = 0
        for number, method, group, case in turns:
            if self._fits("distinguisher") and (trial := self.trial(method, group, case, b"trial %d" % number)):
                self.trials.append((method, trial))
                self.bet(method, trial)
            if number > done:
                done = number
                self._note_bets()
                self._save()
            self._watcher.advance(f"{group}, {method}")
        self._note_bets()

    def _note_bets(self) -> None:
        self._results.distinguisher, self._results.believed = self.tally.rows(), self.tally.believed()

    def trial(self, method: str, group: str, case: Case, key: bytes) -> Trial | None:
        """None where the method refuses, which is counted."""
        self.tally.tried[method, group] += 1
        try:
            made = make_variants([case.text], self._of.methods[method](key))
        except CloisterError:
            self.tally.refused[method, group] += 1
            return None
        real = tuple(entity.secret for entity in made.entities)
        categories = tuple(entity.category for entity in made.entities)
        texts, values = tuple(text for (text,) in made.texts), (real, *made.substitutes.values)
        return Trial(group, texts, values, categories, made.substitutes)

    def bet(self, method: str, trial: Trial) -> None:
        tally, lists = self.tally, self._of.adversaries.lists
        for who, scores in self._of.adversaries.scores(trial).items():
            tally.bets.setdefault((method, who, trial.group), []).append((right(scores), rank(scores)))
        for at, variant in enumerate(trial.values):
            known = [lists.exists(*pair) for pair in zip(trial.categories, variant, strict=True)]
            if None not in known:
                tally.exist.setdefault((method, trial.group), []).append((at == 0, all(known)))

    def _repetition(self) -> None:
        """What all the sets that went out for one secret share, with a store of substitutes and without."""
        plan = self._plan
        self._watcher.begin("repetition", len(plan.repeated))
        for method in plan.repeated:
            left: dict[tuple[str, bool], list[int]] = {}
            for cases in self._of.cases.values():
                texts = [case.text for case in cases[:3] if len(add_mentions([case.text])[0].spans) == 1]
                for case in cases[: plan.repetitions] if len(texts) == 3 else ():
                    secret = case.text.secret(case.text.spans[0])
                    often = {
                        "one prompt ten times": [case.text] * 10,
                        "three prompts": [_with(text, secret) for text in texts],
                    }
                    for what, prompts in often.items():
                        for stored in (True, False):
                            if self._fits("repetition") and (count := self._common(method, prompts, stored)):
                                left.setdefault((what, stored), []).append(count)
            self._results.repetition += [
                {
                    **{"method": method, "sent": what, "store": stored, "secrets": len(counts)},
                    **{"left": round(mean(counts), 2), "alone": round(mean(count == 1 for count in counts), 3)},
                }
                for (what, stored), counts in left.items()
            ]
            self._watcher.advance(method)

    def _common(self, method: str, prompts: Sequence[TaggedText], stored: bool) -> int:
        """How many values are in every set, the real one among them; 0 where a prompt is refused."""
        made = self._of.methods[method]
        one = Obfuscation(made(b"store"))
        sets: list[set[str]] = []
        for number, text in enumerate(prompts):
            by = one if stored else Obfuscation(made(b"request %d" % number))
            before, after = text.text[: text.spans[0].start], text.text[text.spans[0].end :]
            said = before + redacted(text.secret(text.spans[0]), text.spans[0].category) + after
            try:
                sent = by.obfuscate("/v1/completions", json.dumps({"prompt": said}).encode())
            except CloisterError:
                return 0
            bodies = [json.loads(body)["prompt"] for body in (sent.bodies if sent else ())]
            sets.append({body[len(before) : len(body) - len(after)].casefold() for body in bodies})
        return len(set.intersection(*sets))

    def _examples(self) -> None:
        """What a reader can judge: the values that stand for each secret of sentences written for this."""
        methods = [method for method in self._plan.shown if method in self._of.methods]
        self._watcher.begin("examples", len(EXAMPLES) * len(methods))
        for text in EXAMPLES if self._fits("examples") else ():
            for method in methods:
                try:
                    made = make_variants([parse_redacted(text)], self._of.methods[method](b"example"))
                    values = [", ".join(row) for row in made.substitutes.values]
                except CloisterError as refused:
                    values = [f"refused: {refused}"]
                self._results.examples.append({"text": text, "method": method, "values": values})
                self._watcher.advance(method)

    def _lists(self) -> None:
        first, most = self._of.samplers[0], self._plan.curves
        cases = {str(each): those[:most] for each, those in self._of.cases.items()}
        self._watcher.begin("lists", 1)
        for row in sizes(first.tokenizer, first.model.vocabulary, cases, self._of.joint[: 4 * most]):
            if self._fits("lists"):
                self._results.lists.append(row)
        self._watcher.advance("lists")

    def _curves(self) -> None:
        pieces = tasks(
            self._of.samplers,
            {str(each): those for each, those in self._of.cases.items()},
            self._of.joint,
            self._plan.curves,
        )
        self._watcher.begin("curves", len(pieces))
        for piece in pieces:
            self._results.curves += piece() if self._fits("curves") else ()
            self._save()
            self._watcher.advance("a curve")

    def _decoding(self) -> None:
        """Figure 10."""
        plan = self._plan
        if self._server is None or not self._fits("decoding"):
            return
        self._watcher.begin("decoding", len(plan.users) * len(plan.decoded))
        with self._server() as asked:
            for users in plan.users:
                alone: float | None = None
                for fakes in plan.decoded:
                    took = time_between_tokens(asked, users, fakes, plan.tokens, plan.rounds)
                    alone = alone or took
                    row = {"users": users, "fakes": fakes, "ms": round(took, 2), "ratio": round(took / alone, 3)}
                    self._results.decoding.append(row)
                    self._watcher.advance(f"{users} users, λ = {fakes}")

    def _fits(self, part: str) -> bool:
        if self._elapsed < self._plan.seconds:
            return True
        if (said := f"{part}: not all, for lack of time") not in self._results.skipped:
            self._results.skipped.append(said)
        return False


def _with(text: TaggedText, secret: str) -> TaggedText:
    [span] = text.spans
    said = text.text[: span.start] + secret + text.text[span.end :]
    return TaggedText(said, (type(span)(span.start, span.start + len(secret), span.category),))


def _share(found: Sequence[bool]) -> float | None:
    return round(mean(found), 3) if found else None
