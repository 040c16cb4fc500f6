"""The document of `bench detection`, its targets, tables and figure. Measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cloister_bench.detection.measure import TIERS, Block, rates
from cloister_bench.detection.redaction_recall import redaction_table
from cloister_bench.suite import documents
from cloister_bench.suite.documents import (
    Cell,
    Document,
    Panel,
    Row,
    Table,
    Target,
    charts,
    rate_cell,
    targets_table,
)

ALL = "tiers 1 and 2"
LEAST_DRAWN = 20  # blocks


@dataclass(frozen=True, slots=True)
class Plan:
    """`quarter`: which part of each set; 3 was never trained or calibrated on."""

    quarter: int = 3
    public_below: float = 0.0
    private_from: float = 0.0


def _of(*path: str) -> Callable[[Row], Any]:
    """None where a part of the path is missing."""

    def found(row: Any) -> Any:
        for name in path:
            row = (row or {}).get(name)
        return row

    return found


TARGETS = (
    Target("recall of private blocks", 0.98, _of("overall", ALL, "recall", "share")),
    Target("clean blocks held private", 0.15, _of("overall", ALL, "held_clean", "share"), "at most"),
    Target("tier 1 on 512 tokens, µs", 100.0, _of("latency_us", "tier 1", "p50"), "at most"),
    Target("tier 2 on a block, µs", 500.0, _of("latency_us", "tier 2, a block", "p50"), "at most"),
)


@dataclass
class Results(documents.Results):
    plan: Plan
    blocks: list[Block] = field(default_factory=list)
    latency_us: dict[str, dict[str, float]] = field(default_factory=dict)
    redaction: list[Row] = field(default_factory=list)
    redaction_of_clean: Row = field(default_factory=dict)
    targets = TARGETS

    def numbers(self) -> Document:
        elsewhere = [block for block in self.blocks if block.language != "en"]
        return {
            "overall": self._rates(self.blocks),
            "datasets": self._by("dataset"),
            "languages": {**self._by("language"), "all but en": self._rates(elsewhere)},
            "latency_us": self.latency_us,
            "redaction": {"secrets": self.redaction, "clean": self.redaction_of_clean},
        }

    def remarks(self) -> Document:
        return {"blocks": len(self.blocks)}

    def _rates(self, blocks: Sequence[Block]) -> Row:
        return {tier: rates(blocks, partial(_held, held, self.plan.public_below)) for tier, held in TIERS.items()}

    def _by(self, key: str) -> Row:
        groups: dict[str, list[Block]] = {}
        for block in self.blocks:
            groups.setdefault(getattr(block, key), []).append(block)
        return {name: self._rates(group) for name, group in sorted(groups.items())}


def _held(held: Callable[[Block, float], bool], public: float, block: Block) -> bool:
    return held(block, public)


def _rates_table(title: str, rows: Row, *tiers: str) -> Table:
    """As wide as a terminal of 80 columns without columns for single `tiers`."""
    columns: dict[str, str | Cell] = {
        "": "name",
        **{tier: _of(tier, "recall", "share") for tier in tiers},
        "recall": lambda row: rate_cell(row[ALL]["recall"]),
        "of": _of(ALL, "recall", "of"),
        "clean held": lambda row: rate_cell(row[ALL]["held_clean"]),
        "of clean": _of(ALL, "held_clean", "of"),
    }
    return Table.of(title, _named(rows), columns)


def _named(rows: Row) -> list[Row]:
    return [{"name": name, **row} for name, row in rows.items()]


def tables(document: Document) -> list[Table]:
    times = {"": "name", "p50": "p50", "p95": "p95", "p99": "p99"}
    return [
        _rates_table("Sets", {"all": document["overall"], **document["datasets"]}, "tier 1", "tier 2"),
        _rates_table("Languages", document["languages"]),
        Table.of("Processor time on 512 tokens, µs", _named(document["latency_us"]), times),
        redaction_table(document["redaction"]["secrets"]),
        targets_table(document["targets"]),
    ]


def _accuracy(document: Document) -> list[Row]:
    return [
        {
            "set": name,
            "tier": tier,
            **{key: one["share"] if one["of"] >= LEAST_DRAWN else None for key, one in found.items()},
        }
        for name, by_tier in document["datasets"].items()
        for tier, found in by_tier.items()
    ]


FIGURES = {
    "detection-accuracy": charts(
        _accuracy,
        "accuracy of the tiers, by set",
        Panel("set", "recall", "tier", "private blocks held back", "bars", limit=0.98),
        Panel("set", "held_clean", "tier", "clean blocks held back", "bars", limit=0.15),
        grid=(2, 1),
        panel=(10.0, 3.4),
    )
}
