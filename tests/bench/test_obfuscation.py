"""The bench of obfuscation on a model small enough to know what it must find."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from cloister.bench.obfuscation.distinguisher import BETS, Guesses, score
from cloister.bench.obfuscation.plan import PARTS, Plan
from cloister.bench.obfuscation.results import Results, tables
from cloister.bench.obfuscation.run import Bench
from cloister.bench.obfuscation.texts import clinical_texts
from cloister.bench.suite.intervals import wilson
from cloister.errors import SetupError
from cloister.obfuscation.tags import Category, TaggedText, parse_redacted
from tests.obfuscation.fake_model import NAMES, TOWNS, RuleModel, WordTokenizer

PLAN = Plan(
    secrets=4,
    epsilons=(0.0005, 1.0),
    lambda_max=16,
    latency_lambdas=(4, 8),
    latency_epsilons=(1.0,),
    latency_tokens=1,
    fakes=3,
    trials=16,
)


class FakeModel:
    def __init__(self) -> None:
        self.tokenizer = WordTokenizer()
        self.continuations = RuleModel(self.tokenizer.vocabulary + 200)  # room for words that come later


class Silent:
    def begin(self, part: str, total: int) -> None: ...

    def advance(self, what: str) -> None: ...

    def say(self, what: str) -> None: ...


def texts(category: Category, words: list[str]) -> list[TaggedText]:
    return [parse_redacted(f'Hello, <redacted category="{category}">{word}</redacted>, welcome') for word in words]


def test_all_parts_are_measured_and_tabulated() -> None:
    results, saved = Results(PLAN, "fake"), []
    made = {Category.NAME: texts(Category.NAME, NAMES[:8]), Category.PLACE: texts(Category.PLACE, TOWNS[:8])}
    Bench(results, FakeModel(), made, Silent(), lambda: saved.append(1)).run(PARTS)
    document = results.document()
    assert not document["failed"] and len(saved) == 3
    narrow, wide = ([row["mean"] for row in document["curves"] if row["epsilon"] == each] for each in PLAN.epsilons)
    assert len(document["curves"]) == 4 and all(a < b for a, b in zip(narrow, wide, strict=True))
    assert [row["found"] for row in document["latency"]] == [4, 8]
    assert {row["fakes"] for row in document["distinguisher"]} == {"sampled", "random"}
    assert {row["of"] for row in document["distinguisher"] if row["fakes"] == "sampled"} == {16}
    random = next(row for row in document["distinguisher"] if (row["fakes"], row["bet"]) == ("random", "likeliest"))
    assert random["low"] <= random["advantage"] <= random["high"]
    assert [table.title for table in tables(document)][-1] == "Targets"


def test_what_does_not_fit_the_time_is_left_out_and_said() -> None:
    results = Results(Plan(seconds=0.0, secrets=1, trials=1), "fake")
    made = {Category.NAME: texts(Category.NAME, NAMES[:1])}
    Bench(results, FakeModel(), made, Silent(), lambda: None).run(PARTS)
    assert len(results.skipped) == 3 and not results.latency


def test_the_score_is_the_model_s_probability() -> None:
    model = RuleModel(20)
    values = [(4, 5, 6), (7,)]
    assert score(model, (1, 2), values) == pytest.approx([model.logprob(value, (1, 2)) for value in values], abs=1e-4)


def test_bets_and_their_intervals() -> None:
    scores = [-3.0, -1.0, -9.0]
    assert [bet(scores) for bet in BETS.values()] == [1, 2, 0]
    low, high = wilson(10, 100)
    assert 0.05 < low < 0.1 < high < 0.18 and wilson(0, 10)[0] == 0.0 and wilson(10, 10)[1] == 1.0
    guesses = Guesses(50, 100, 3)
    assert guesses.advantage == 0.25 and guesses.interval[0] > 0.1


def test_notes_are_marked_by_rules_and_cut_between_words(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "clinical"
    folder.mkdir(parents=True)
    long = " ".join(["word"] * 200)
    notes = [f"{long} seen by Dr. Quimby on May 3, 2011. {long}", "A 44-year-old takes Aspirin.", "Dr. Quimby again."]
    with (folder / "mts_dialog_val.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["ID", "section_header", "section_text", "dialogue"])
        writer.writerows([[number, "X", note, ""] for number, note in enumerate(notes)])
    found = clinical_texts(tmp_path, 5)
    secrets = {str(name): [text.secret(text.spans[0]) for text in those] for name, those in found.items()}
    assert secrets == {"name": ["Dr. Quimby"], "age": ["44"], "date": ["May 3, 2011"], "medication": ["Aspirin"]}
    cut = found[Category.NAME][0].text
    assert len(cut) < 620 and cut.startswith("word ") and cut.endswith(" word")
    with pytest.raises(SetupError, match="no clinical dialogues"):
        clinical_texts(tmp_path / "elsewhere", 5)
