"""The document of `bench privacy`, its targets, tables, figure, and the README's table. Measures nothing."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING

from cloister_bench.privacy import borrowed, cheating, contributions, stealing, traffic
from cloister_bench.privacy.rows import Attack, Plan
from cloister_bench.suite import documents
from cloister_bench.suite.documents import Document, Row, Table, Target

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ATTACKS: dict[str, Attack] = {
    "reconstruction": contributions.attack,
    "stealing": stealing.attack,
    "cache timing": borrowed.cache_timing,
    "distinguisher": borrowed.distinguisher,
    "traffic": traffic.attack,
    "cheating service": lambda victim: (
        row
        for setting in cheating.attacks(trials=victim.plan.trials, model=victim.model)
        for row in setting(victim.say)
    ),
}
QUICK = Plan((0, 1), (4,), prompts=1, steps=12, secrets=4, trials=4, streams=20, seed=1)
FULL = Plan((0, 1, 2, 4, 8, 16, 29), (6, 12), prompts=1, steps=20, secrets=24, trials=20, streams=320, seed=1)


def _most(setting: str) -> Callable[[Document], float | None]:
    return lambda document: (documents.find(document["rows"], attack="traffic", setting=setting) or {}).get("gets")


def _baseline(attack: str) -> Callable[[Document], float | None]:
    def measured(document: Document) -> float | None:
        every = [one["baseline"] for one in document["rows"] if one["attack"] == attack]
        return min((each for each in every if each is not None), default=None)

    return measured


BASELINES = {"reconstruction": 0.9, "stealing": 0.8, "cache timing": 0.9, "distinguisher": 0.3, "traffic": 0.7}


@dataclass
class Results(documents.Results):
    plan: Plan
    rows: list[Row] = field(default_factory=list)
    targets = (
        *(Target(f"{one}, AUC", traffic.TARGET, _most(one), "at most") for one in ("sealed", "plain stream, --beat")),
        *(Target(f"baseline: {one}", least, _baseline(one)) for one, least in BASELINES.items()),
    )

    def numbers(self) -> Document:
        return {"rows": self.rows}

    def remarks(self) -> Document:
        return {"seconds": round(self.seconds, 1)}


COLUMNS: dict[str, str | documents.Cell] = {
    **{name: name for name in ("attack", "level", "setting", "unit", "of")},
    "gets": lambda one: documents.rate_cell({**one, "share": one["gets"]}),
    "guessing": lambda one: one.get("guessing"),
    "baseline": "baseline",
}


def tables(document: Document) -> list[Table]:
    found = Table.of("What our best attacker gets", document["rows"], COLUMNS, 4)
    return [found, documents.targets_table(document["targets"])]


def draw(document: Document, axes: "tuple[Axes, ...]") -> str:
    rows: list[Row] = document["rows"]
    deep = [one for one in rows if one.get("tokens") == document["plan"]["tokens"][0]]
    for dtype, (key, style) in product(("fp32", "bf16"), (("gets", "o-"), ("baseline", "s:"))):
        points = [(str(one["layer"]), one[key]) for one in deep if one["dtype"] == dtype]
        if points:
            label = f"{dtype}, {'contributions' if key == 'gets' else 'keys known'}"
            axes[0].plot(*zip(*points, strict=True), style, label=label)
    axes[0].set(xlabel="layer whose contributions are seen", ylabel="share of tokens recovered", ylim=(-0.05, 1.05))
    shares = [one for one in rows if "layer" not in one and not one["attack"].startswith("cheating")]
    others = [one for one in shares if one["gets"] is not None]
    names = [f"{one['attack']}, {one['level']}\n{one['setting']}" for one in others]
    axes[1].barh(names, [one["gets"] for one in others], label="attacker")
    axes[1].plot([one["baseline"] for one in others], names, "k|", markersize=14, label="baseline")
    axes[1].invert_yaxis()
    for panel in axes:
        panel.tick_params(labelsize="x-small")
        panel.legend(fontsize="x-small")
    return "what our best attacker gets"


FIGURES = {"privacy": documents.Drawing(lambda one: one if one["rows"] else None, draw, (1, 2), panel=(6.4, 4.2))}
