"""What `bench obfuscation` measures; its document with targets, tables and figures. Measures nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from cloister_bench.suite import documents
from cloister_bench.suite.documents import (
    Cell,
    Document,
    Drawing,
    Row,
    Table,
    Target,
    find,
    lines,
    rate_cell,
    targets_table,
    value_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


METHODS = ("naive", "dictionary", "gqs", "exchangeable")
Part = Literal["distinguisher", "repetition", "curves", "latency", "decoding"]
PARTS: tuple[Part, ...] = get_args(Part)
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
    curves: int = 5  # secrets of each category
    epsilons: tuple[float, ...] = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
    lambda_max: int = 512
    latency_lambdas: tuple[int, ...] = (64, 128, 256, 512)
    latency_tokens: int = 8
    users: tuple[int, ...] = (1, 8)
    decoded: tuple[int, ...] = (0, 2, 4, 8, 16)
    tokens: int = 32
    rounds: int = 2
    seconds: float = 3600.0


FULL = Plan()
QUICK = Plan(
    trials=dict.fromkeys(FULL.trials, 2),
    repetitions=1,
    curves=1,
    lambda_max=64,
    latency_lambdas=(64, 128),
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


def _slowest(document: Document) -> float | None:
    return max((row["seconds"] for row in document["latency"]), default=None)


def _overhead(users: int) -> Any:
    def measured(document: Document) -> float | None:
        row = find(document["decoding"], users=users, fakes=8)
        return None if row is None else float(row["ratio"])

    return measured


def _beside_formula(document: Document) -> float | None:
    rows = [row for row in document["memory"] if row["formula"]]
    return max((abs(row["bytes"] / row["formula"] - 1) for row in rows), default=None)


SECOND, RATIO = "second model", "second ÷ sampling model"
TARGETS = (
    Target("second model, worst category", 0.20, _worst(SECOND), "at most"),
    Target("… with 2–4 secrets", 0.20, _of(SECOND, JOINT), "at most"),
    Target("… all categories", None, _of(SECOND, "all")),
    Target("… against the dictionary", None, _of(SECOND, "all", "dictionary")),
    Target("… against GQS (Alg. 1)", None, _of(SECOND, "all", "gqs")),
    Target("… against random words", None, _of(SECOND, "all", "naive")),
    Target("second ÷ sampling model, all categories", None, _of(RATIO, "all")),
    Target("… against the dictionary", None, _of(RATIO, "all", "dictionary")),
    Target("a reader", 0.30, value_of("reader", "share", method="exchangeable", group="all"), "at most"),
    Target("fakes that exist, worst category", 0.8, _exist),
    Target("time between tokens at λ = 8, one user, of `partitioned`", 1.15, _overhead(1), "at most"),
    Target("… eight users", 1.4, _overhead(8), "at most"),
    Target("vault memory's distance from the formula", 0.05, _beside_formula, "at most"),
    Target("largest λ_max for eight tokens, s", 20.0, _slowest, "at most"),
)


@dataclass
class Results(documents.Results):
    """`curves`: λ found, for each secret and ε; `memory`: what a vault holds beside one prompt."""

    distinguisher: list[Row] = field(default_factory=list)
    believed: list[Row] = field(default_factory=list)
    repetition: list[Row] = field(default_factory=list)
    reader: list[Row] = field(default_factory=list)
    curves: list[Row] = field(default_factory=list)
    latency: list[Row] = field(default_factory=list)
    decoding: list[Row] = field(default_factory=list)
    memory: list[Row] = field(default_factory=list)
    second_model: str = ""
    skipped: list[str] = field(default_factory=list)
    targets = TARGETS

    def numbers(self) -> Document:
        return {part: getattr(self, part) for part in (*PARTS, "believed", "reader", "memory")}

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
    memory: dict[str, str | Cell] = {
        "λ": "fakes",
        "MiB": lambda row: row["bytes"] / 2**20,
        "formula, MiB": lambda row: row["formula"] and row["formula"] / 2**20,
    }
    kept = {"method": "method", "sent": "sent", "values in every set": "left", "the real one alone": "alone"}
    stored: dict[str, str | Cell] = {**kept, "store": lambda row: "yes" if row["store"] else "no", "secrets": "secrets"}
    exist = {"method": "method", "group": "group", "tried": "tried", "refused": "refused"}
    curves = {"category": "category", "ε": "epsilon", "mean λ": "mean", "secrets": "secrets"}
    latency = {"λ_max": "lambda_max", "found": "found", "seconds": "seconds", "processor s": "processor_s"}
    decoding = {"users": "users", "λ": "fakes", "ms between tokens": "ms", "of `partitioned`": "ratio"}
    reader: dict[str, str | Cell] = {"method": "method", "group": "group", "of": "of", "top-1": rate_cell}
    return [
        Table.of("Who finds the real prompt (top-1, 95%)", _in_columns(document), bets, labels=2 + len(groups)),
        Table.of(
            "What exists", document["believed"], {**exist, "real": "real_exist", "fakes": "fakes_exist"}, labels=2
        ),
        Table.of("A reader", document["reader"], reader, labels=2),
        Table.of("One secret again", document["repetition"], stored, labels=2),
        Table.of("Substitutes found (λ)", document["curves"], curves),
        Table.of("Sampling", document["latency"], latency, labels=0),
        Table.of("Decoding", document["decoding"], decoding, labels=0),
        Table.of("A vault's memory beside one prompt's", document["memory"], memory, labels=0),
        targets_table(document["targets"]),
    ]


def _draw_curves(rows: list[Row], axes: tuple[Axes, ...]) -> str:
    lines(axes[0], rows, "epsilon", "mean", "category", {})
    for name in dict.fromkeys(row["category"] for row in rows):
        mine = [row for row in rows if row["category"] == name]
        low, high = [row["low"] for row in mine], [row["high"] for row in mine]
        axes[0].fill_between([row["epsilon"] for row in mine], low, high, alpha=0.15)
    axes[0].set(xscale="log", xlabel="ε", ylabel="λ", ylim=(0, None))
    axes[0].legend()
    return "substitutes of Alg. 1"


def _draw_latency(rows: list[Row], axes: tuple[Axes, ...]) -> str:
    axes[0].plot([row["lambda_max"] for row in rows], [row["seconds"] for row in rows], marker="o")
    axes[0].set(xlabel="λ_max", ylabel="s", ylim=(0, None))
    return f"sampling for {rows[0]['tokens']} tokens"


def _draw_bets(rows: list[Row], axes: tuple[Axes, ...]) -> str:
    names = list(dict.fromkeys(row["adversary"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    for at, method in enumerate(methods):
        mine = {row["adversary"]: row for row in rows if row["method"] == method and row["group"] == "all"}
        places = [names.index(name) + 0.2 * at for name in mine]
        reach = [
            [row["share"] - row["low"] for row in mine.values()],
            [row["high"] - row["share"] for row in mine.values()],
        ]
        axes[0].errorbar([row["share"] for row in mine.values()], places, xerr=reach, fmt="o", label=method)
    axes[0].axvline(1 / 8, color="grey", linewidth=1)
    axes[0].set(xlabel="top-1, 95%; the line is chance", yticks=range(len(names)), yticklabels=names, xlim=(0, 1))
    axes[0].legend(fontsize="small")
    return "who finds the real prompt"


def _draw_decoding(rows: list[Row], axes: tuple[Axes, ...]) -> str:
    named = [{**row, "name": f"{row['users']} user{'s' if row['users'] > 1 else ''}"} for row in rows]
    lines(axes[0], named, "fakes", "ratio", "name", {})
    axes[0].set(xlabel="λ", ylabel="time between tokens, of `partitioned`", ylim=(0, None))
    axes[0].legend()
    return "decoding with λ made-up prompts"


FIGURES = {
    "bets": Drawing(lambda document: document["distinguisher"], _draw_bets),
    "decoding": Drawing(lambda document: document["decoding"], _draw_decoding),
    "curves": Drawing(lambda document: document["curves"], _draw_curves),
    "latency": Drawing(lambda document: document["latency"], _draw_latency),
}
