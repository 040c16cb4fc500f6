"""What `bench obfuscation` measures; its document with targets, tables and figures. Measures nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

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
    number,
    targets_table,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Part = Literal["curves", "latency", "distinguisher", "decoding"]
PARTS: tuple[Part, ...] = ("curves", "latency", "distinguisher", "decoding")


@dataclass(frozen=True, slots=True)
class Plan:
    """`secrets` of each category. λ of the decoding begins at 0, which is `partitioned`."""

    secrets: int = 20
    epsilons: tuple[float, ...] = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
    lambda_max: int = 512
    latency_lambdas: tuple[int, ...] = (64, 128, 256, 512)
    latency_epsilons: tuple[float, ...] = (1 / 32, 1 / 4)
    latency_tokens: int = 8
    fakes: int = 7
    bet_epsilon: float = 0.1
    bet_lambda_max: int = 128
    trials: int = 100
    users: tuple[int, ...] = (1, 8)
    decoded: tuple[int, ...] = (0, 2, 4, 8, 16)
    tokens: int = 32
    rounds: int = 2
    temperature: float = 1.0
    seconds: float = 3600.0


FULL = Plan()
QUICK = Plan(
    secrets=3,
    epsilons=(1 / 32, 1 / 4),
    lambda_max=64,
    latency_lambdas=(64, 128, 256, 512),
    latency_epsilons=(1 / 8,),
    fakes=3,
    trials=60,
    users=(1,),
    decoded=(0, 8),
    rounds=1,
    seconds=600.0,
)


def _slowest(document: Document) -> float | None:
    row = find(document["latency"], lambda_max=512, tokens=8)
    return None if row is None else float(row["seconds"])


def _advantage(fakes: str, *, sampling: bool) -> Any:
    def measured(document: Document) -> float | None:
        mine = (row for row in document["distinguisher"] if row["fakes"] == fakes)
        return max(
            (row["advantage"] for row in mine if (row["adversary"] == "sampling model") is sampling), default=None
        )

    return measured


def _overhead(users: int) -> Any:
    def measured(document: Document) -> float | None:
        row = find(document["decoding"], users=users, fakes=8)
        return None if row is None else float(row["ratio"])

    return measured


def _beside_formula(document: Document) -> float | None:
    rows = [row for row in document["memory"] if row["formula"]]
    return max((abs(row["bytes"] / row["formula"] - 1) for row in rows), default=None)


TARGETS = (
    Target("time between tokens at λ = 8, one user, of `partitioned`", 1.15, _overhead(1), "at most"),
    Target("… eight users", 1.4, _overhead(8), "at most"),
    Target("vault memory's distance from the formula", 0.05, _beside_formula, "at most"),
    Target("512 candidates for eight tokens, s", 20.0, _slowest, "at most"),
    Target("best bet's advantage with the sampling model", 0.1, _advantage("sampled", sampling=True), "at most"),
    Target("best bet's advantage with anything else", None, _advantage("sampled", sampling=False)),
    Target("… with the sampling model, against random names", None, _advantage("random", sampling=True)),
    Target("… with anything else, against random names", None, _advantage("random", sampling=False)),
)


@dataclass
class Results(documents.Results):
    """`curves`: λ found, for each secret and ε; `latency`: seconds; `memory`: what a vault holds beside one prompt."""

    curves: list[Row] = field(default_factory=list)
    latency: list[Row] = field(default_factory=list)
    distinguisher: list[Row] = field(default_factory=list)
    decoding: list[Row] = field(default_factory=list)
    memory: list[Row] = field(default_factory=list)
    too_few: int = 0  # prompts of the distinguisher that would not have been sent
    skipped: list[str] = field(default_factory=list)
    targets = TARGETS

    def numbers(self) -> Document:
        parts = ("curves", "latency", "distinguisher", "decoding", "memory")
        return {part: getattr(self, part) for part in parts}

    def remarks(self) -> Document:
        return {"skipped": self.skipped, "too_few": self.too_few, "seconds": round(self.seconds, 1)}


def tables(document: Document) -> list[Table]:
    curves = {"category": "category", "ε": "epsilon", "mean λ": "mean", "secrets": "secrets"}
    latency = {"λ_max": "lambda_max", "ε": "epsilon", "found": "found", "seconds": "seconds"}
    bets: dict[str, str | Cell] = {
        **{name: name for name in ("fakes", "adversary", "bet")},
        "right": lambda row: f"{number(row['right'])}/{row['of']}",
        "advantage": "advantage",
        "95%": lambda row: f"{number(row['low'])} … {number(row['high'])}",
    }
    decoding = {"users": "users", "λ": "fakes", "ms between tokens": "ms", "of `partitioned`": "ratio"}
    memory: dict[str, str | Cell] = {
        "λ": "fakes",
        "MiB": lambda row: row["bytes"] / 2**20,
        "formula, MiB": lambda row: row["formula"] and row["formula"] / 2**20,
    }
    return [
        Table.of("Substitutes found (λ)", document["curves"], curves),
        Table.of("Sampling", document["latency"], {**latency, "processor s": "processor_s"}, labels=0),
        Table.of("Who bets on one prompt", document["distinguisher"], bets, labels=3),
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
    return "substitutes found for secrets of clinical notes"


def _draw_latency(rows: list[Row], axes: tuple[Axes, ...]) -> str:
    named = [{**row, "name": f"ε = {row['epsilon']:.3g}"} for row in rows]
    lines(axes[0], named, "lambda_max", "seconds", "name", {})
    axes[0].set(xlabel="λ_max", ylabel="s", ylim=(0, None))
    axes[0].legend()
    return f"sampling for {rows[0]['tokens']} tokens"


def _draw_bets(rows: list[Row], axes: tuple[Axes, ...]) -> str:
    names = list(dict.fromkeys(row["adversary"] for row in rows))
    for at, (kind, colour) in enumerate((("sampled", "tab:blue"), ("random", "tab:orange"))):
        bets = [[row for row in rows if (row["adversary"], row["fakes"]) == (name, kind)] for name in names]
        best = [max(mine, key=lambda row: row["advantage"]) for mine in bets if mine]
        reach = [
            [max(0.0, row["advantage"] - row["low"]) for row in best],
            [row["high"] - row["advantage"] for row in best],
        ]
        places = [names.index(row["adversary"]) + 0.2 * at for row in best]
        axes[0].errorbar([row["advantage"] for row in best], places, xerr=reach, fmt="o", color=colour, label=kind)
    axes[0].axvline(0, color="grey", linewidth=1)
    axes[0].set(xlabel="advantage over 1/(λ+1), 95%", yticks=range(len(names)), yticklabels=names)
    axes[0].legend()
    return "the better bet of each adversary"


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
