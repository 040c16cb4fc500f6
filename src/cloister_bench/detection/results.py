"""Runs detection over labelled texts, block by block, and times its tiers; the document of `bench detection`, its
targets, tables and figure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import quantiles
from time import process_time_ns
from typing import Any

from cloister.detection.folding import fold
from cloister.detection.pipeline import Pipeline, blocks_of, even_blocks
from cloister.messages.controller_detector import Label
from cloister_bench.detection.data import UNKNOWN, Sample
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
    rate_of,
    targets_table,
)

BLOCK_CHARACTERS = 64
PROMPT_CHARACTERS = 2304  # about 512 tokens
PROMPTS = 200


@dataclass(frozen=True, slots=True)
class Block:
    """Whether it is private by its set's labels, and what each tier said."""

    dataset: str
    language: str
    private: bool
    tier1: bool
    label: Label
    score: float


def examined(pipeline: Pipeline, sample: Sample) -> list[Block]:
    """Blocks with a part of unknown kind are left out."""
    ends = even_blocks(sample.text, BLOCK_CHARACTERS)
    types: list[set[str]] = [set() for _ in ends]
    for start, end, kind in sample.spans:
        for block in blocks_of(start, end, ends):
            types[block].add(kind)
    verdicts = pipeline.examine(sample.text, ends).verdicts
    return [
        Block(sample.dataset, sample.language, bool(kinds), verdict.tier == 1, verdict.label, verdict.score)
        for kinds, verdict in zip(types, verdicts, strict=True)
        if UNKNOWN not in kinds
    ]


def rates(blocks: Iterable[Block], held: Callable[[Block], bool]) -> Row:
    """Of private blocks and of clean ones: the share that is held back."""
    counted = {True: [0, 0], False: [0, 0]}
    for block in blocks:
        counted[block.private][0] += held(block)
        counted[block.private][1] += 1
    return {"recall": rate_of(*counted[True]), "held_clean": rate_of(*counted[False])}


def threshold_for(blocks: Sequence[Block], wanted: float) -> float:
    """The highest threshold of tier 2 with which the tiers together hold back this share of the private blocks."""
    missed = sorted(block.score for block in blocks if block.private and not block.tier1)
    allowed = int((1 - wanted) * sum(block.private for block in blocks) + 1e-9)
    return missed[min(allowed, len(missed) - 1)] if missed else 1.0


def latencies(pipeline: Pipeline, text: str) -> dict[str, dict[str, float]]:
    """Processor time of each tier on prompts of about 512 tokens, in µs; of tier 2 also for each block."""
    size, tagger = PROMPT_CHARACTERS, pipeline.tagger
    assert tagger is not None
    took: dict[str, list[float]] = {"tier 1": [], "tier 2": [], "tier 2, a block": []}
    for at in range(0, min(len(text) - size + 1, PROMPTS * size), size):
        prompt = text[at : at + size]
        began = process_time_ns()
        pipeline.rules.find((folded := fold(prompt)).text)
        between = process_time_ns()
        tagger.tag(folded.text)
        ended = process_time_ns()
        took["tier 1"].append((between - began) / 1000)
        took["tier 2"].append((ended - between) / 1000)
        took["tier 2, a block"].append((ended - between) / 1000 / (size // BLOCK_CHARACTERS))
    return {name: _percentiles(times) for name, times in took.items() if len(times) > 1}


def _percentiles(times: list[float]) -> dict[str, float]:
    cut = quantiles(times, n=100, method="inclusive")
    return {"p50": round(cut[49], 1), "p95": round(cut[94], 1), "p99": round(cut[98], 1), "of": len(times)}


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
        """By tier."""
        return {
            "tier 1": rates(blocks, lambda block: block.tier1),
            "tier 2": rates(blocks, lambda block: block.score >= self.plan.public_below),
            ALL: rates(blocks, lambda block: block.label is not Label.PUBLIC),
        }

    def _by(self, key: str) -> Row:
        groups: dict[str, list[Block]] = {}
        for block in self.blocks:
            groups.setdefault(getattr(block, key), []).append(block)
        return {name: self._rates(group) for name, group in sorted(groups.items())}


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
