"""The document of `bench privacy`, its targets and table. Measures nothing."""

from collections.abc import Callable
from dataclasses import dataclass, field

from cloister_bench.privacy import (
    borrowed,
    cheating,
    contributions,
    private_layers,
    recitation,
    stealing,
    traffic,
    watching,
)
from cloister_bench.privacy.rows import Attack, Plan
from cloister_bench.suite import documents
from cloister_bench.suite.documents import Document, Panel, Row, Table, Target

ATTACKS: dict[str, Attack] = {
    "reconstruction": contributions.attack,
    "private layers": private_layers.attack,
    "stealing": stealing.attack,
    "cache timing": borrowed.cache_timing,
    "distinguisher": borrowed.distinguisher,
    "traffic": traffic.attack,
    "recitation": recitation.attack,
    "watching": watching.attack,
    "cheating service": cheating.attack,
}
QUICK = Plan((0, 1), (4,), prompts=1, steps=12, secrets=4, trials=4, recitals=2, seed=1)
FULL = Plan((0, 1, 2, 4, 8, 16), (6, 12, 24), prompts=20, steps=20, secrets=48, trials=20, recitals=48, seed=1)


def _most(setting: str) -> Callable[[Document], float | None]:
    return lambda document: (documents.find(document["rows"], attack="traffic", setting=setting) or {}).get("gets")


def _baseline(attack: str) -> Callable[[Document], float | None]:
    return lambda document: min(
        (one["baseline"] for one in document["rows"] if one["attack"] == attack and one["baseline"] is not None),
        default=None,
    )


BASELINES = {
    "reconstruction": 0.9,
    "stealing": 0.8,
    "cache timing": 0.9,
    "distinguisher": 0.3,
    "private layers": 0.9,
    "traffic": 0.7,
}


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


def _curves(document: Document) -> list[Row]:
    return [
        {"form": one["kind"], "watch": one["by"], "rate": float(rate), "share": share}
        for one in document["rows"]
        for rate, share in one.get("curve", {}).items()
    ]


FIGURES = {
    "privacy-recitation": documents.charts(
        _curves,
        "recitations of a system prompt that a watch finds",
        *(
            Panel("rate", "share", "form", f"by {watch}", where={"watch": watch}, log="x", labels=labels)
            for watch, labels in (
                ("letters", {"xlabel": "false alarms", "ylabel": "found"}),
                ("attention", {"xlabel": "false alarms"}),
            )
        ),
        grid=(1, 2),
    )
}
