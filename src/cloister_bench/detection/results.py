"""The document of `bench detection`, its targets, tables and figures. Measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cloister.messages.controller_detector import Label
from cloister_bench.detection.measure import TIERS, Block, over_isolated, recall
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
    texts: list[list[Block]] = field(default_factory=list)
    latency_us: dict[str, dict[str, float]] = field(default_factory=dict)
    redaction: list[Row] = field(default_factory=list)
    redaction_of_clean: Row = field(default_factory=dict)
    targets = TARGETS

    def numbers(self) -> Document:
        types = sorted({kind for block in self.blocks for kind in block.types})
        return {
            "overall": self._rates(self.blocks),
            "datasets": {name: self._rates(group) for name, group in self._by("dataset").items()},
            "languages": {name: self._rates(group) for name, group in self._by("language").items()}
            | {"all but en": self._rates([block for block in self.blocks if block.language != "en"])},
            "categories": {kind: self._recall_of(kind) for kind in types},
            "texts": self._rates([_whole(blocks) for blocks in self.texts if blocks]),  # private if any block is
            "decided_by": self._decided(),
            "latency_us": self.latency_us,
            "redaction": {"secrets": self.redaction, "clean": self.redaction_of_clean},
        }

    def remarks(self) -> Document:
        return {"blocks": len(self.blocks), "seconds": round(self.seconds, 1)}

    def _tiers(self) -> dict[str, Callable[[Block], bool]]:
        return {name: partial(_held, held, self.plan.public_below) for name, held in TIERS.items()}

    def _rates(self, blocks: Sequence[Block]) -> dict[str, Any]:
        return {
            name: {"recall": recall(blocks, held), "held_clean": over_isolated(blocks, held)}
            for name, held in self._tiers().items()
        }

    def _by(self, key: str) -> dict[str, list[Block]]:
        groups: dict[str, list[Block]] = {}
        for block in self.blocks:
            groups.setdefault(getattr(block, key), []).append(block)
        return dict(sorted(groups.items()))

    def _recall_of(self, kind: str) -> dict[str, Any]:
        mine = [block for block in self.blocks if kind in block.types]
        return {tier: recall(mine, held) for tier, held in self._tiers().items()}

    def _decided(self) -> dict[str, float]:
        counts = {"tier 1": 0, "tier 2": 0, "tier 3": 0}
        for blocks in self.texts:
            if any(block.tier1 for block in blocks):
                counts["tier 1"] += 1
            elif any(b.label is Label.UNCERTAIN for b in blocks) and not any(b.label is Label.PRIVATE for b in blocks):
                counts["tier 3"] += 1
            else:
                counts["tier 2"] += 1
        total = max(1, len(self.texts))
        return {name: round(count / total, 4) for name, count in counts.items()}


def _held(held: Callable[[Block, float], bool], public: float, block: Block) -> bool:
    return held(block, public)


def _whole(blocks: Sequence[Block]) -> Block:
    first = blocks[0]
    return Block(
        first.dataset,
        first.language,
        frozenset().union(*(block.types for block in blocks)),
        any(block.tier1 for block in blocks),
        min(block.label for block in blocks),
        max(block.score for block in blocks),
    )


def _rates_table(title: str, rows: dict[str, Any], *tiers: str) -> Table:
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


def _named(rows: dict[str, Any]) -> list[Row]:
    return [{"name": name, **row} for name, row in rows.items()]


def tables(document: Document) -> list[Table]:
    sets = {"all": document["overall"], "whole texts": document["texts"], **document["datasets"]}
    times = {"": "name", "p50": "p50", "p95": "p95", "p99": "p99"}
    shares = {tier: _of(tier, "share") for tier in TIERS}
    types: dict[str, str | Cell] = {"": "name", **shares, "blocks": _of(ALL, "of")}
    return [
        _rates_table("Sets", sets, "tier 1", "tier 2"),
        _rates_table("Languages", document["languages"]),
        Table.of("Recall by type", _named(document["categories"]), types),
        Table.of("Processor time on 512 tokens, µs", _named(document["latency_us"]), times),
        redaction_table(document["redaction"]["secrets"]),
        targets_table(document["targets"]),
    ]


def _accuracy(document: Document) -> list[Row]:
    """SafeKV Figure 7: recall for every set that has private blocks; beside it, clean blocks held back."""
    return [
        {"set": name, "tier": tier}
        | {key: rates[tier][key]["share"] if rates[tier][key]["of"] >= 20 else None for key in ("recall", "held_clean")}
        for name, rates in document["datasets"].items()
        for tier in TIERS
    ]


def _decided(document: Document) -> list[Row]:
    return [{"tier": tier, "share": share, "by": "texts"} for tier, share in document["decided_by"].items()]


FIGURES = {
    "detection-accuracy": charts(
        _accuracy,
        "accuracy of the tiers, by set",
        Panel("set", "recall", "tier", "private blocks held back", "bars", limit=0.98),
        Panel("set", "held_clean", "tier", "clean blocks held back", "bars", limit=0.15),
        grid=(2, 1),
        panel=(10.0, 3.4),
    ),
    "detection-tiers": charts(_decided, "which tier decides", Panel("tier", "share", "by", "share of texts", "bars")),
}
