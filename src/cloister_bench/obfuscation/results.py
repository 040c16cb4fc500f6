"""What `bench obfuscation` measures; its document with targets, tables and figures. Measures nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from cloister_bench.suite import documents
from cloister_bench.suite.documents import (
    Cell,
    Document,
    Row,
    Table,
    Target,
    find,
    rate_cell,
    targets_table,
    value_of,
)

METHODS = ("naive", "dictionary", "gqs", "exchangeable")
Part = Literal["distinguisher", "repetition", "examples", "lists", "curves", "decoding"]
PARTS: tuple[Part, ...] = get_args(Part)
EXAMPLES = (
    'After the tick bite I was given <redacted category="medication">doxycycline</redacted> for two weeks.',
    'My doctor put me on <redacted category="medication">Lisinopril 10mg</redacted> for my blood pressure.',
    'We moved to <redacted category="place">Boston</redacted> last summer.',
    'The operation was on <redacted category="date">March 14, 2019</redacted>, and all went well.',
    'I am <redacted category="age">47</redacted> years old and run twice a week.',
    '<redacted category="name">Dr. Patel</redacted> asked me to come again next month.',
    'I am <redacted category="name">Margaret Thornbury</redacted>. Please call me Mrs. Thornbury.',
    'My card number is <redacted category="id">4539 1488 0343 6467</redacted>; why was it refused?',
    'For nine years I have worked at <redacted category="organisation">Siemens</redacted> as an engineer.',
    'DOB: <redacted category="date">07/22/1968</redacted>. Please write a referral letter.',
)
JOINT = "2–4 secrets"  # of one prompt: not among all
MANY, FEW = 40, 15


@dataclass(frozen=True, slots=True)
class Plan:
    """`trials`: secrets of each category, by method. λ of the decoding begins at 0, which is `partitioned`."""

    trials: Mapping[str, int] = field(
        default_factory=lambda: {"exchangeable": MANY, "dictionary": MANY, "gqs": FEW, "naive": FEW}
    )
    fakes: int = 7
    repeated: tuple[str, ...] = ("exchangeable", "dictionary")
    repetitions: int = 3  # secrets of each category
    shown: tuple[str, ...] = ("gqs", "exchangeable")  # before and now
    curves: int = 10  # secrets of each category
    users: tuple[int, ...] = (1, 8)
    decoded: tuple[int, ...] = (0, 2, 4, 8, 16, 31)
    tokens: int = 32
    rounds: int = 2
    seconds: float = 3600.0


FULL = Plan()
QUICK = Plan(
    trials=dict.fromkeys(FULL.trials, 2),
    repetitions=1,
    curves=1,
    users=(1,),
    decoded=(0, 8),
    rounds=1,
    seconds=600.0,
)


def _worst(adversary: str, method: str = "exchangeable", least: int = 5) -> Any:
    """The largest share of a category with at least `least` bets."""

    def measured(document: Document) -> float | None:
        rows = [row for row in document["distinguisher"] if (row["method"], row["adversary"]) == (method, adversary)]
        return max(
            (row["share"] for row in rows if row["of"] >= least and row["group"] not in ("all", JOINT)), default=None
        )

    return measured


def _of(adversary: str, group: str, method: str = "exchangeable") -> Any:
    return value_of("distinguisher", "share", method=method, adversary=adversary, group=group)


def _exist(document: Document) -> float | None:
    rows = [row for row in document["believed"] if row["method"] == "exchangeable" and row["fakes_exist"] is not None]
    return min((row["fakes_exist"] for row in rows), default=None)


def _overhead(users: int) -> Any:
    def measured(document: Document) -> float | None:
        row = find(document["decoding"], users=users, fakes=8)
        return None if row is None else float(row["ratio"])

    return measured


SECOND = "second model"
TARGETS = (
    Target("second model, worst category", 0.20, _worst(SECOND), "at most"),
    Target("… with 2–4 secrets", 0.20, _of(SECOND, JOINT), "at most"),
    Target("… all categories", None, _of(SECOND, "all")),
    Target("… against the dictionary", None, _of(SECOND, "all", "dictionary")),
    Target("a reader", 0.30, value_of("reader", "share", method="exchangeable", group="all"), "at most"),
    Target("fakes that exist, worst category", 0.8, _exist),
    Target("time between tokens at λ = 8, one user, of `partitioned`", 1.15, _overhead(1), "at most"),
    Target("… eight users", 1.4, _overhead(8), "at most"),
)


@dataclass
class Results(documents.Results):
    distinguisher: list[Row] = field(default_factory=list)
    believed: list[Row] = field(default_factory=list)
    repetition: list[Row] = field(default_factory=list)
    reader: list[Row] = field(default_factory=list)
    examples: list[Row] = field(default_factory=list)
    lists: list[Row] = field(default_factory=list)
    curves: list[Row] = field(default_factory=list)
    decoding: list[Row] = field(default_factory=list)
    second_model: str = ""
    skipped: list[str] = field(default_factory=list)
    targets = TARGETS

    def numbers(self) -> Document:
        return {part: getattr(self, part) for part in (*PARTS, "believed", "reader")}

    def remarks(self) -> Document:
        return {"second_model": self.second_model, "skipped": self.skipped, "seconds": round(self.seconds, 1)}


def _in_columns(document: Document) -> list[Row]:
    """A row for each method and adversary, a column for each group: top-1 with its interval."""
    rows: dict[tuple[str, str], Row] = {}
    for row in document["distinguisher"]:
        mine = rows.setdefault(
            (row["method"], row["adversary"]), {"method": row["method"], "adversary": row["adversary"]}
        )
        mine[row["group"]] = f"{row['share']:.2f} ({row['low']:.2f}–{row['high']:.2f}) of {row['of']}"
    return list(rows.values())


def tables(document: Document) -> list[Table]:
    groups = sorted({row["group"] for row in document["distinguisher"]})
    bets: dict[str, str | Cell] = {name: name for name in ("method", "adversary")}
    bets |= {group: (lambda row, group=group: row.get(group, "-")) for group in groups}
    kept = {"method": "method", "sent": "sent", "values in every set": "left", "the real one alone": "alone"}
    stored: dict[str, str | Cell] = {**kept, "store": lambda row: "yes" if row["store"] else "no", "secrets": "secrets"}
    exist = {"method": "method", "group": "group", "tried": "tried", "refused": "refused"}
    examples: dict[str, str | Cell] = {
        "text": "text",
        "method": "method",
        "values": lambda row: "; ".join(row["values"]),
    }
    curves = {"against": "against", "line": "line", "x": "x", "y": "y"}
    decoding = {"users": "users", "λ": "fakes", "ms between tokens": "ms", "of `partitioned`": "ratio"}
    reader: dict[str, str | Cell] = {"method": "method", "group": "group", "of": "of", "top-1": rate_cell}
    return [
        Table.of("Who finds the real prompt (top-1, 95%)", _in_columns(document), bets, labels=2 + len(groups)),
        Table.of(
            "What exists", document["believed"], {**exist, "real": "real_exist", "fakes": "fakes_exist"}, labels=2
        ),
        Table.of("A reader", document["reader"], reader, labels=2),
        Table.of("One secret again", document["repetition"], stored, labels=2),
        Table.of("Examples", document["examples"], examples, labels=3),
        Table.of("Lists", document["lists"], {**curves, "tokens": "tokens"}, labels=3),
        Table.of("Curves", document["curves"], curves, labels=3),
        Table.of("Decoding", document["decoding"], decoding, labels=0),
        targets_table(document["targets"]),
    ]
