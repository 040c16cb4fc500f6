"""The bench of obfuscation on a model small enough to know what it must find."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from cloister.errors import SetupError, TooFewCandidates
from cloister.obfuscation.entities import Entity
from cloister.obfuscation.goal import Method, SamplingGoal
from cloister.obfuscation.index import Prf
from cloister.obfuscation.joint import Group
from cloister.obfuscation.language_model import TokenShapes
from cloister.obfuscation.sampler import Sampler
from cloister.obfuscation.tags import Category, TaggedText, parse_redacted
from cloister.obfuscation.variants import GivenSubstitutes, Substituting, make_variants
from cloister_bench.obfuscation.adversaries import Adversaries, Letters, Trial, rank, reader_of, right, until_values
from cloister_bench.obfuscation.curves import FIGURES, Point, Sampling, bets, by_domain, within
from cloister_bench.obfuscation.methods import Naive, Remembered
from cloister_bench.obfuscation.reader import export_cases, score_answers
from cloister_bench.obfuscation.results import JOINT, PARTS, Plan, Results, tables
from cloister_bench.obfuscation.run import Bench, Material
from cloister_bench.obfuscation.sizes import FIGURES as LISTS
from cloister_bench.obfuscation.sizes import sizes
from cloister_bench.obfuscation.texts import Case, cut, one_secret, several_secrets
from cloister_bench.obfuscation.word_lists import WordLists, is_date, is_number
from cloister_bench.suite.documents import draw_figures
from tests.obfuscation.fake_model import FAMILIES, NAMES, TOWNS, RuleModel, WordTokenizer

FAKES = 3
PLAN = Plan(
    trials={"exchangeable": 8, "naive": 8, "refusing": 8},
    fakes=FAKES,
    repeated=("exchangeable",),
    repetitions=2,
    shown=("naive",),
    curves=2,
    users=(1, 2),
    decoded=(0, 4, 8),
    tokens=5,
    rounds=1,
)
LETTERS = Letters([f"Hello, {name}, welcome" for name in (*NAMES, *TOWNS)])
TOKENIZER = WordTokenizer()


class Refusing:
    def substitutes(self, texts: Sequence[TaggedText], entities: Sequence[Entity], taken: object = ()) -> None:
        raise TooFewCandidates("There are none.", span=1, found=0)


def pooled(model: RuleModel, key: bytes, pool: Sequence[str] = NAMES, method: Method = "exchangeable") -> Sampler:
    def grouping(texts: Sequence[TaggedText], entities: Sequence[Entity], prf: Prf, wanted: int) -> list[Group]:
        return [Group((at,), tuple((value,) for value in pool)) for at in range(len(entities))]

    shapes = TokenShapes(TOKENIZER, model.vocabulary)
    return Sampler(model, TOKENIZER, SamplingGoal(FAKES, method=method), Prf(sha256(key).digest()), shapes, grouping)


def a_model(seed: int = 0, sharper: float = 1.0) -> RuleModel:
    model = RuleModel(TOKENIZER.vocabulary + 200, seed)  # room for words that come later
    model._table *= sharper
    return model


def adversaries(model: RuleModel, second: RuleModel | None = None) -> Adversaries:
    lists = WordLists(None, dict.fromkeys((word.casefold() for word in (*NAMES, *TOWNS)), 1.0))
    return Adversaries(reader_of(model, TOKENIZER), LETTERS, lists, second and reader_of(second, TOKENIZER))


def material(cases: dict[Category, list[Case]], joint: Sequence[Case] = ()) -> Material:
    model = a_model()
    methods: dict[str, Callable[[bytes], Substituting]] = {
        "exchangeable": lambda key: pooled(model, key),
        "naive": lambda key: Naive(["quxa", "quxb", "quxc", "quxd"], FAKES),
        "refusing": lambda key: Refusing(),
    }
    return Material(methods, cases, joint, adversaries(model, a_model(1)), [sampling(0), sampling(1)])


def sampling(seed: int) -> Sampling:
    model = a_model(seed)
    shapes = TokenShapes(TOKENIZER, model.vocabulary)
    return Sampling(f"model {seed}", model, TOKENIZER, shapes, reader_of(model, TOKENIZER))


class FakeServer:
    """A token takes a millisecond for each prompt."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.ended: list[str] = []

    def __enter__(self) -> FakeServer:
        return self

    def __exit__(self, *_: object) -> None: ...

    def answer(self, session: str, fakes: int, tokens: int) -> list[float]:
        self.asked.append(session)
        return [0.001 * (fakes + 1) * token for token in range(tokens)]

    def end(self, session: str) -> None:
        self.ended.append(session)


class Silent:
    def begin(self, part: str, total: int) -> None: ...

    def advance(self, what: str) -> None: ...

    def say(self, what: str) -> None: ...


def cases(category: Category, words: Sequence[str]) -> list[Case]:
    frame = 'Hello, <redacted category="{}">{}</redacted>, welcome'
    return [Case("here", parse_redacted(frame.format(category, word))) for word in words]


def test_all_parts_are_measured_and_tabulated() -> None:
    results, saved = Results(PLAN, "fake"), []
    both = parse_redacted(f"Dear <redacted>{NAMES[0]}</redacted>, meet <redacted>{NAMES[1]}</redacted> today")
    made = material({Category.NAME: cases(Category.NAME, NAMES[:8])}, [Case("here", both)])
    bench = Bench(results, made, Silent(), lambda: saved.append(1), FakeServer)
    bench.run(PARTS)
    document = results.document()
    assert not document["failed"] and len(saved) >= 5
    groups = {(row["method"], row["group"], row["of"]) for row in document["distinguisher"]}
    assert {("exchangeable", "name", 8), ("exchangeable", "all", 8), ("exchangeable", JOINT, 1)} < groups
    assert {row["adversary"] for row in document["distinguisher"] if row["method"] == "exchangeable"} == {
        *(
            "sampling model",
            "word lists, calendar",
            "letters",
            "sizes",
            "sampler again",
            "sampler again, even prior",
        ),
        *("second model", "second model, value alone", "second ÷ sampling model"),
    }
    assert all(row["low"] <= row["share"] <= row["high"] for row in document["distinguisher"])
    by_method = {row["method"]: row for row in document["believed"] if row["group"] == "name"}
    assert by_method["refusing"]["refused"] == by_method["refusing"]["tried"] == 8, "a refusal is shown"
    assert (by_method["exchangeable"]["fakes_exist"], by_method["naive"]["fakes_exist"]) == (1.0, 0.0)
    [lists] = [
        row["share"]
        for row in document["distinguisher"]
        if (row["method"], row["adversary"], row["group"]) == ("naive", "word lists, calendar", "all")
    ]
    assert lists == 1.0, "who has a list of names finds the only one among random words"
    examples = {row["text"]: row["values"] for row in document["examples"]}
    assert len(examples) == 10 and all(values and "refused" not in values for values in examples.values())
    assert [table.title for table in tables(document)][-1] == "Targets"


@pytest.mark.parametrize(("method", "left_over"), [("dictionary", 1.0), ("exchangeable", FAKES + 1)])
def test_one_secret_again_narrows_down_to_it_unless_kept_or_in_one_band(method: Method, left_over: float) -> None:
    """A band of λ+1 values is one set, whatever the key."""
    results = Results(replace(PLAN, repeated=(method,)), "fake")
    made = material({Category.NAME: cases(Category.NAME, NAMES[:3])})
    by = {method: lambda key: pooled(a_model(), key, method=method)}
    Bench(results, replace(made, methods=by), Silent(), lambda: None).run(["repetition"])
    left = {(row["sent"], row["store"]): row["left"] for row in results.repetition}
    assert left["one prompt ten times", True] == left["three prompts", True] == FAKES + 1
    assert left["one prompt ten times", False] == left_over


def test_decoding_is_compared_with_partitioned() -> None:
    results, server = Results(PLAN, "fake"), FakeServer()
    Bench(results, material({}), Silent(), lambda: None, lambda: server).run(["decoding"])
    rows = results.document()["decoding"]
    assert [(row["users"], row["fakes"], row["ratio"]) for row in rows] == [
        *((1, 0, 1.0), (1, 4, 5.0), (1, 8, 9.0), (2, 0, 1.0), (2, 4, 5.0), (2, 8, 9.0))
    ]
    assert set(server.asked) == set(server.ended)
    assert [row["met"] for row in results.document()["targets"] if "partitioned" in row["name"]] == [False]


def test_curves_against_λ_and_ε(tmp_path: Path) -> None:
    """An age has 32 values: λ = 31 takes them all, and more are refused."""
    by, ages = sampling(0), cases(Category.AGE, ["47", "52", "38"])
    readers = {one.name: one.read for one in (by, sampling(1))}
    rows = [row for fakes in (1, 31, 127) for row in bets(Point("λ", fakes=fakes), by, readers, ages)]
    chances = {row["x"]: (row["y"], row["served"] > 0) for row in rows if row["line"] == "chance"}
    assert chances == {1: (0.5, True), 31: (0.0312, True), 127: (None, False)}
    assert all(row["of"] == row["served"] for row in rows if row["line"] == "read by model 1")
    names = cases(Category.NAME, NAMES[:3])
    counts = [row["y"] for row in within(by, names, "résumés", "name")]
    assert counts == sorted(counts) and counts[-1] > 0, "a larger ε holds no fewer"
    placed = [
        replace(case, source=source) for case, source in zip(names, ("clinical", "résumé", "presidio"), strict=True)
    ]
    assert set(by_domain({"name": placed}, 5)) == {("clinical notes", "name"), ("résumés", "name")}
    results = Results(PLAN, "fake")
    Bench(results, material({Category.NAME: placed}), Silent(), lambda: None).run(["curves"])
    document = results.document()
    assert not document["failed"]
    assert {row["against"] for row in document["curves"]} >= {
        "λ",
        "ε",
        "sampler",
        "seconds",
        "clinical notes",
        "résumés",
    }
    assert all(path.stat().st_size for path in draw_figures(document, tmp_path, FIGURES))


def test_what_the_lists_serve_against_λ_and_the_number_of_secrets(tmp_path: Path) -> None:
    """Of ages there are 32: at λ = 128 none is served, and each name is."""
    named, aged = cases(Category.NAME, ["Thomas", "Maria"]), cases(Category.AGE, ["47", "52"])
    one, other = "<redacted category='name'>Thomas</redacted>", "<redacted category='age'>47</redacted>"
    joint = [Case("résumé", parse_redacted(f"I am {one}, now {other}.".replace("'", '"')))]
    rows = list(sizes(WordTokenizer(), 1000, {"name": named, "age": aged}, joint))
    shares = {(row["line"], row["x"]): row["y"] for row in rows if row["against"] == "λ"}
    assert [shares[name, fakes] for name in ("name", "age") for fakes in (7, 31, 128)] == [1, 1, 1, 1, 1, 0]
    tokens = [row["tokens"] for row in rows if row["line"] == "name"]
    assert tokens == sorted(tokens) and tokens[0] > 0, "a larger λ reads no less"
    assert [(row["x"], row["y"]) for row in rows if row["against"] == "secrets"] == [
        (1, 1),
        (2, 1),
        (3, None),
        (4, None),
    ]
    assert all(path.stat().st_size for path in draw_figures({"lists": rows, "model": "fake"}, tmp_path, LISTS))


def test_what_does_not_fit_the_time_is_left_out_and_said() -> None:
    results = Results(Plan(seconds=0.0, trials={"naive": 1}), "fake")
    made = material({Category.NAME: cases(Category.NAME, NAMES[:3])})
    Bench(results, made, Silent(), lambda: None, FakeServer).run(PARTS)
    assert len(results.skipped) == 6 and not results.examples and not results.decoding and not results.distinguisher


def test_the_score_is_the_model_s_probability_and_is_computed_once() -> None:
    model = a_model()
    remembered = Remembered(model)
    texts = [f"Hello, {name}, welcome" for name in NAMES[:4]]
    read = reader_of(remembered, TOKENIZER)
    found, rows = read(texts), model.rows
    assert read(texts) == found and model.rows == rows
    expected = [model.logprob(tokens[2:], tokens[:2]) for tokens in map(TOKENIZER.encode, texts)]
    assert [one - found[0] for one in found] == pytest.approx([one - expected[0] for one in expected], abs=1e-4)
    assert until_values(texts)[0] == f"Hello, {NAMES[0]}"


def test_bets_and_ranks() -> None:
    assert [right(scores) for scores in ([-1, -3, -9], [-3, -1, -9], [2, 2, 1, 2])] == [1, 0, pytest.approx(1 / 3)]
    assert [rank(scores) for scores in ([3, 1, 2], [0, 1, 2], [1, 1, 1])] == [1.0, 0.0, 0.5]


def test_the_adversary_wins_when_exchangeability_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control. The real name is drawn from the model, which knows what is likely here, and is trusted whole. Fakes
    of its own draw hide it from that model; fakes drawn evenly, or from another list, do not."""
    monkeypatch.setattr("cloister.obfuscation.pool_draw.CERTAINTY", 1.0)
    draw, frame = random.Random(3), 'Hello, <redacted category="name">{}</redacted>, welcome'
    shares: dict[str, list[float]] = {"exchangeable": [], "even": [], "other list": []}
    for trial in range(120):
        model = a_model(trial % 5, sharper=3.0)
        prior = reader_of(model, TOKENIZER)([f"Hello, {name}, welcome" for name in NAMES])
        [real] = draw.choices(NAMES, [2.718281828 ** (each - max(prior)) for each in prior])
        others = [name for name in NAMES if name != real]
        methods: dict[str, Substituting] = {
            "exchangeable": pooled(model, b"%d" % trial),
            "even": GivenSubstitutes([[name] for name in draw.sample(others, FAKES)]),
            "other list": GivenSubstitutes([[name] for name in draw.sample(FAMILIES, FAKES)]),
        }
        for name, method in methods.items():
            try:
                made = make_variants([parse_redacted(frame.format(real))], method)
            except TooFewCandidates:  # no other name is likely here
                break
            texts = tuple(text for (text,) in made.texts)
            values = ((real,), *made.substitutes.values)
            scores = adversaries(model).scores(Trial("name", texts, values, (Category.NAME,), made.substitutes))
            shares[name].append(right(scores["sampling model"]))
            if name == "exchangeable":
                shares.setdefault("again", []).append(right(scores["sampler again"]))
            if name == "other list":
                shares.setdefault("lists", []).append(right(scores["word lists, calendar"]))
    means = {name: sum(found) / len(found) for name, found in shares.items()}
    assert len(shares["exchangeable"]) > 70
    assert means["even"] > 0.5 and means["other list"] > 0.45 and means["lists"] == 1.0, "by chance it is 0.25"
    assert means["exchangeable"] < 0.4 and means["again"] < 0.4, "nor does it help to know what each would have drawn"


def test_lists_a_calendar_and_checksums_know_what_exists(tmp_path: Path) -> None:
    assert [is_date(each) for each in ("28/26/2019", "2/30/2019", "31/12/2019", "May 31, 2004", "June 31", "1850")] == [
        *(False, False, True, True, False, False)
    ]
    assert is_date("Monday") and is_date("August of 2008") and is_date("1990-03-15") and not is_date("Mayday")
    assert is_number("4111111111111111") and not is_number("4111111111111112") and is_number("MRN-123")
    assert is_number("GB82 WEST 1234 5698 7654 32") and not is_number("GB83WEST12345698765432")
    assert is_number("123-45-6789") and not is_number("923-45-6789")
    (tmp_path / "name.txt").write_text("Ann\t900\nlee\t5\n")
    lists = WordLists(tmp_path, {"clinic": 3.0})
    assert lists.exists(Category.NAME, "Dr. Ann Lee") and not lists.exists(Category.NAME, "Jonathanathan Lee")
    assert lists.score(Category.NAME, "Ann") > lists.score(Category.NAME, "Lee") > lists.score(Category.NAME, "Xyl")
    assert (
        lists.exists(Category.AGE, "61")
        and not lists.exists(Category.AGE, "1²")
        and lists.exists(Category.NAME, "伟") is None
    )
    assert lists.exists(Category.ORGANISATION, "Clinic") and not lists.exists(Category.ORGANISATION, "Clnc")


def test_a_reader_sees_cases_without_their_key(tmp_path: Path) -> None:
    made = make_variants([cases(Category.NAME, NAMES[:1])[0].text], GivenSubstitutes([["Nameb"], ["Namec"]]))
    texts = tuple(text for (text,) in made.texts)
    trials = [Trial(group, texts, (), (), made.substitutes) for group in ("name", "name", "date")]
    answers, key, shown = (tmp_path / f"{name}.json" for name in ("answers", "key", "cases"))
    assert export_cases(trials, 2, shown, key) == 2
    found, real = json.loads(shown.read_text()), json.loads(key.read_text())
    assert {case["kind"] for case in found["cases"]} == {"name", "date"} and "real" not in shown.read_text()
    for case in found["cases"]:
        assert case["prompts"][str(real[str(case["id"])]["real"])] == texts[0]
    answers.write_text(json.dumps({"0": real["0"]["real"], "1": 99}))
    rows = {row["group"]: row["share"] for row in score_answers(answers, key)}
    assert rows["all"] == 0.5 and sorted(rows.values()) == [0.0, 0.5, 1.0]
    answers.write_text("[]")
    with pytest.raises(SetupError, match="no JSON object"):
        score_answers(answers, key)


def test_secrets_come_from_all_sources_by_a_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloister_bench.obfuscation.texts.USED", 0)
    for folder in ("clinical", "pii"):
        (tmp_path / "data" / folder).mkdir(parents=True)
    long = " ".join(["word"] * 60)
    notes = ["taken before"] * 3 + [
        f"{long} A 44-year-old takes Aspirin since May 3, 2011. {long}",
        "Zolpidex and Lipitor.",
    ]
    for name, those in (("train", notes), ("val", ["She takes Insulin, and no more."])):
        with (tmp_path / f"data/clinical/mts_dialog_{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["ID", "section_header", "section_text", "dialogue"])
            writer.writerows([[number, "MEDICATIONS", note, ""] for number, note in enumerate(those)])
    labels = {
        "PERSON": "Quim Bey",
        "GPE": "Oslo",
        "ORGANIZATION": "Acme Ltd",
        "DATE_TIME": "1/2/2003",
        "PHONE_NUMBER": "555-012-3456",
    }
    rows = [
        {
            "full_text": f"It says {value} and no more.",
            "spans": [
                {"entity_type": label, "entity_value": value, "start_position": 8, "end_position": 8 + len(value)}
            ],
        }
        for label, value in labels.items()
        for _ in range(2)
    ]
    (tmp_path / "data/pii/presidio_synth_dataset_v2.json").write_text(json.dumps(rows))
    for name in ("clinical", "technology"):
        row = {"text": "Seen by Jo Bloggs, mail jo.bloggs@x.org, born 1990-01-02.", "annotations": []}
        (tmp_path / f"data/pii/pii_anon_test_{name}_250.jsonl").write_text(json.dumps(row) + "\n")
    found = one_secret(tmp_path, 9)
    secrets = {str(name): {case.text.secret(case.text.spans[0]) for case in those} for name, those in found.items()}
    assert secrets["age"] == {"44"} and "May 3, 2011" in secrets["date"] and "Aspirin" in secrets["medication"]
    assert {"Zolpidex", "Lipitor", "Insulin"} < secrets["medication"] and secrets["name"] == {"Quim Bey"}
    assert {case.source for case in found[Category.PLACE]} == {"presidio", "résumé"}
    assert len(found[Category.AGE][0].text.text) < 260 and found == one_secret(tmp_path, 9), "the same each time"
    assert {len(case.text.spans) for case in several_secrets(tmp_path, 30)} == {2, 3, 4}
    text = parse_redacted("Seen by <redacted>Jo Bloggs</redacted>, mail jo.xbloggs@x.org")
    assert cut(text, text.spans) is None, "no mark hides what a longer word says"
    with pytest.raises(SetupError, match="There is no"):
        one_secret(tmp_path / "elsewhere", 5)
