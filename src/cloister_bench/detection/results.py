"""The document of `bench detection`, its targets and its tables. Measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cloister.messages.controller_detector import Label
from cloister_bench.detection.measure import TIERS, Block, over_isolated, recall
from cloister_bench.suite import documents
from cloister_bench.suite.documents import Document, Table, Target, number, targets_table

ALL = "tiers 1 and 2"


@dataclass(frozen=True, slots=True)
class Plan:
    """`quarter`: which part of each set; 3 was never trained or calibrated on."""

    quarter: int = 3
    block_characters: int = 64
    public_below: float = 0.0
    private_from: float = 0.0


def _of(*path: str) -> Callable[[Document], float | None]:
    def found(document: Document) -> float | None:
        for name in path:
            document = (document or {}).get(name)  # type: ignore[assignment]
        return document  # type: ignore[return-value]

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
    targets = TARGETS

    def numbers(self) -> Document:
        types = sorted({kind for block in self.blocks for kind in block.types})
        return {
            "overall": self._rates(self.blocks),
            "datasets": {name: self._rates(group) for name, group in self._by("dataset").items()},
            "languages": {name: self._rates(group) for name, group in self._by("language").items()},
            "categories": {
                kind: {tier: recall(self._with(kind), held).as_json() for tier, held in self._tiers().items()}
                for kind in types
            },
            "texts": self._texts(),
            "decided_by": self._decided(),
            "latency_us": self.latency_us,
        }

    def remarks(self) -> Document:
        return {"blocks": len(self.blocks), "seconds": round(self.seconds, 1)}

    def _tiers(self) -> dict[str, Callable[[Block], bool]]:
        return {name: partial(_held, held, self.plan.public_below) for name, held in TIERS.items()}

    def _rates(self, blocks: Sequence[Block]) -> dict[str, Any]:
        return {
            name: {"recall": recall(blocks, held).as_json(), "held_clean": over_isolated(blocks, held).as_json()}
            for name, held in self._tiers().items()
        }

    def _by(self, key: str) -> dict[str, list[Block]]:
        groups: dict[str, list[Block]] = {}
        for block in self.blocks:
            groups.setdefault(getattr(block, key), []).append(block)
        return dict(sorted(groups.items()))

    def _with(self, kind: str) -> list[Block]:
        return [block for block in self.blocks if kind in block.types]

    def _texts(self) -> dict[str, Any]:
        """Of whole texts: private if any block is."""
        whole = [_whole(blocks) for blocks in self.texts if blocks]
        return self._rates(whole)

    def _decided(self) -> dict[str, float]:
        """Which tier has the last word on a text (Figure 9): the rules, the tagger, or tier 3 for the uncertain."""
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
    """All blocks of a text as one."""
    first = blocks[0]
    return Block(
        first.dataset,
        first.language,
        frozenset().union(*(block.types for block in blocks)),
        any(block.tier1 for block in blocks),
        min(block.label for block in blocks),
        max(block.score for block in blocks),
    )


def _cells(rates: dict[str, Any]) -> list[str]:
    def shown(share: dict[str, Any]) -> str:
        return "-" if share["share"] is None else f"{share['share']:.3f} ({share['low']:.3f}–{share['high']:.3f})"

    both = rates[ALL]
    tiers = [number(rates[tier]["recall"]["share"]) for tier in ("tier 1", "tier 2")]
    return [
        *tiers,
        shown(both["recall"]),
        str(both["recall"]["of"]),
        shown(both["held_clean"]),
        str(both["held_clean"]["of"]),
    ]


HEADS = ("", "tier 1", "tier 2", "both: recall", "blocks", "clean held", "blocks")


def tables(document: Document) -> list[Table]:
    datasets = [["all", *_cells(document["overall"])], ["whole texts", *_cells(document["texts"])]]
    datasets += [[name, *_cells(rates)] for name, rates in document["datasets"].items()]
    languages = [[name, *_cells(rates)] for name, rates in document["languages"].items()]
    kinds = [
        [name, *(number(rates[tier]["share"]) for tier in TIERS), str(rates[ALL]["of"])]
        for name, rates in document["categories"].items()
    ]
    times = [
        [name, *(number(row[key]) for key in ("p50", "p95", "p99"))] for name, row in document["latency_us"].items()
    ]
    return [
        Table("Sets", HEADS, datasets),
        Table("Languages", HEADS, languages),
        Table("Recall by type", ("", *TIERS, "blocks"), kinds),
        Table("Processor time on 512 tokens, µs", ("", "p50", "p95", "p99"), times),
        targets_table(document["targets"]),
    ]
