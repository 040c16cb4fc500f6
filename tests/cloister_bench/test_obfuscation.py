"""The bench of obfuscation on a model small enough to know what it must find."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from cloister.errors import SetupError
from cloister.obfuscation.tags import Category, TaggedText, parse_redacted
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
from cloister_bench.obfuscation.results import PARTS, Plan, Results, tables
from cloister_bench.obfuscation.run import Bench
from cloister_bench.obfuscation.texts import clinical_texts, other_notes
from cloister_bench.suite.documents import wilson
from tests.obfuscation.fake_model import NAMES, TOWNS, RuleModel, WordTokenizer

PLAN = Plan(
    secrets=4,
    epsilons=(0.0005, 1.0),
    lambda_max=16,
    latency_lambdas=(4, 8),
    latency_epsilons=(1.0,),
    latency_tokens=1,
    fakes=3,
    bet_epsilon=1.0,
    trials=16,
    users=(1, 2),
    decoded=(0, 4, 8),
    tokens=5,
    rounds=1,
)


LETTERS = Letters([f"Hello, {name}, welcome" for name in (*NAMES, *TOWNS)])


class FakeModel:
    def __init__(self) -> None:
        self.tokenizer = WordTokenizer()
        self.continuations = RuleModel(self.tokenizer.vocabulary + 200)  # room for words that come later


class FakeServer:
    """A token takes a millisecond for each prompt; a vault holds a block of 100 bytes for each sixteen tokens."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.ended: list[str] = []
        self.holds = 0

    def __enter__(self) -> FakeServer:
        return self

    def __exit__(self, *_: object) -> None: ...

    def answer(self, session: str, before: str, after: str, fakes: int, tokens: int) -> tuple[list[float], int]:
        self.asked.append(session)
        count = len(before) + len(after)
        self.holds = 1000 + count // 16 * 100 + fakes * self.kv_bytes(count - len(before) // 16 * 16)
        return [0.001 * (fakes + 1) * token for token in range(tokens)], count

    def end(self, session: str) -> None:
        self.ended.append(session)

    def largest_vault(self) -> int | None:
        return self.holds

    def kv_bytes(self, tokens: int) -> int:
        return -(-tokens // 16) * 100


class Silent:
    def begin(self, part: str, total: int) -> None: ...

    def advance(self, what: str) -> None: ...

    def say(self, what: str) -> None: ...


def texts(category: Category, words: list[str]) -> list[TaggedText]:
    return [parse_redacted(f'Hello, <redacted category="{category}">{word}</redacted>, welcome') for word in words]


def test_all_parts_are_measured_and_tabulated() -> None:
    results, saved = Results(PLAN, "fake"), []
    made = {Category.NAME: texts(Category.NAME, NAMES[:8]), Category.PLACE: texts(Category.PLACE, TOWNS[:8])}
    Bench(results, FakeModel(), made, LETTERS, Silent(), lambda: saved.append(1), FakeModel(), FakeServer).run(PARTS)
    document = results.document()
    assert not document["failed"] and len(saved) == 4
    narrow, wide = ([row["mean"] for row in document["curves"] if row["epsilon"] == each] for each in PLAN.epsilons)
    assert len(document["curves"]) == 4 and all(a < b for a, b in zip(narrow, wide, strict=True))
    assert [row["found"] for row in document["latency"]] == [4, 8]
    assert {row["fakes"] for row in document["distinguisher"]} == {"sampled", "random"}
    assert {row["of"] for row in document["distinguisher"] if row["fakes"] == "sampled"} == {16}
    assert len({row["adversary"] for row in document["distinguisher"]}) == 9
    [again] = [
        row for row in document["distinguisher"] if (row["adversary"], row["bet"]) == ("sampler again", "highest")
    ]
    assert again["advantage"] == 0.0, "each of the prompts would have gone out among the others"
    assert all(row["low"] <= row["advantage"] <= row["high"] for row in document["distinguisher"])
    assert [table.title for table in tables(document)][-1] == "Targets"


def test_decoding_is_compared_with_partitioned_and_memory_with_the_formula() -> None:
    results, server = Results(PLAN, "fake"), FakeServer()
    Bench(results, FakeModel(), {}, LETTERS, Silent(), lambda: None, server=lambda: server).run(["decoding"])
    rows = results.document()["decoding"]
    assert [(row["users"], row["fakes"], row["ratio"]) for row in rows] == [
        *((1, 0, 1.0), (1, 4, 5.0), (1, 8, 9.0), (2, 0, 1.0), (2, 4, 5.0), (2, 8, 9.0))
    ]
    assert set(server.asked) == set(server.ended)
    assert [(row["fakes"], row["bytes"] == row["formula"] > 0) for row in results.memory] == [(4, True), (8, True)]
    met = {
        row["name"]: row["met"]
        for row in results.document()["targets"]
        if "partitioned" in row["name"] or "memory" in row["name"]
    }
    assert list(met.values()) == [False, True]


def test_where_only_root_may_look_memory_is_left_out() -> None:
    results, server = Results(PLAN, "fake"), FakeServer()
    server.largest_vault = lambda: None  # type: ignore[method-assign]
    Bench(results, FakeModel(), {}, LETTERS, Silent(), lambda: None, server=lambda: server).run(["decoding"])
    assert results.memory == [] and results.decoding


def test_what_does_not_fit_the_time_is_left_out_and_said() -> None:
    results = Results(Plan(seconds=0.0, secrets=1, trials=1), "fake")
    made = {Category.NAME: texts(Category.NAME, NAMES[:1])}
    Bench(results, FakeModel(), made, LETTERS, Silent(), lambda: None, server=FakeServer).run(PARTS)
    assert len(results.skipped) == 4 and not results.latency and not results.decoding


def test_the_score_is_the_model_s_probability() -> None:
    model = RuleModel(20)
    values = [(4, 5, 6), (7,)]
    found = [reading.prompt for reading in read_all(model, [(1, 2, *value) for value in values], 0)]
    assert found == pytest.approx([model.logprob(value, (1, 2)) for value in values], abs=1e-4)


def test_bets_and_their_intervals() -> None:
    assert [[right(bet, scores) for bet in BETS] for scores in ([-3, -1, -9], [-1, -3, -9], [-9, -3, -1])] == [
        [0, 0, 1],
        [1, 0, 0],
        [0, 1, 0],
    ]
    assert right("highest", [2, 2, 1, 2]) == pytest.approx(1 / 3), "it draws among those that are alike"
    low, high = wilson(10, 100)
    assert 0.05 < low < 0.1 < high < 0.18 and wilson(0, 10)[0] == 0.0 and wilson(10, 10)[1] == 1.0
    guesses = Guesses(50, 100, 3)
    assert guesses.advantage == 0.25 and guesses.interval[0] > 0.1


def test_whole_prompts_are_read_from_where_they_differ_and_answered_by_the_likeliest_words() -> None:
    model = RuleModel(20)
    prompts = [(1, 2, 5, 6), (1, 2, 7, 6), (1, 2, 5, 6, 7)]
    found = read_all(model, prompts, 2)
    for prompt, reading in zip(prompts, found, strict=True):
        assert reading.prompt == pytest.approx(model.logprob(prompt[2:], prompt[:2]), abs=1e-4)
        assert len(reading.answer) == 2
        said = model.logprob(reading.answer, prompt)
        assert reading.likelihood == pytest.approx(said / 2, abs=1e-4)
        first = max(range(20), key=lambda token: model.logprob((token,), prompt))
        assert reading.answer[0] == first
    assert [len(one.answer) for one in read_all(model, prompts, 2, frozenset(range(20)))] == [0, 0, 0]


def test_an_adversary_who_knows_the_words_finds_the_one_that_is_among_them() -> None:
    tokenizer = WordTokenizer()
    trial = Trial("Hello, ", ", welcome", ["Namea", "Quxzx", "Zzyzx"], [-1.0, -1.0, -1.0])
    model = RuleModel(tokenizer.vocabulary + 200)
    scores = Adversaries(model, tokenizer, LETTERS, reader_of(model, tokenizer)).scores(trial)
    assert right("highest", scores["another model, letters"]) == 1.0
    assert right("highest", scores["sizes, prompt"]) == right("lowest", scores["sampling model"]) == 1 / 3


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
    assert other_notes(tmp_path, found) == ["Dr. Quimby again."], "of those there is a text"
    secrets = {str(name): [text.secret(text.spans[0]) for text in those] for name, those in found.items()}
    assert secrets == {"name": ["Dr. Quimby"], "age": ["44"], "date": ["May 3, 2011"], "medication": ["Aspirin"]}
    cut = found[Category.NAME][0].text
    assert len(cut) < 620 and cut.startswith("word ") and cut.endswith(" word")
    with pytest.raises(SetupError, match="no clinical dialogues"):
        clinical_texts(tmp_path / "elsewhere", 5)
