"""Runs detection over labelled texts, block by block, and times its tiers; the document of `bench detection`, its
targets, tables and figure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import process_time_ns

from cloister.detection.folding import fold
from cloister.detection.pipeline import Pipeline, blocks_of, even_blocks
from cloister.messages.controller_detector import Label
from cloister_bench.detection.data import TEST, UNKNOWN, Sample
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
    value_of,
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


def latencies(pipeline: Pipeline, text: str) -> dict[str, float]:
    """Medians of processor time, in µs: of tier 1 on prompts of about 512 tokens, of tier 2 on a block of them."""
    size, tagger = PROMPT_CHARACTERS, pipeline.tagger
    assert tagger is not None
    tier1, tier2 = [], []
    for at in range(0, min(len(text) - size + 1, PROMPTS * size), size):
        prompt = text[at : at + size]
        began = process_time_ns()
        pipeline.rules.find((folded := fold(prompt)).text)
        between = process_time_ns()
        tagger.tag(folded.text)
        tier1.append(between - began)
        tier2.append(process_time_ns() - between)
    if not tier1:
        return {}
    block = median(tier2) / (size // BLOCK_CHARACTERS)
    return {TIER_1: round(median(tier1) / 1000, 1), TIER_2: round(block / 1000, 1)}


ALL = "tiers 1 and 2"
TIER_1, TIER_2 = "tier 1 on 512 tokens, µs", "tier 2 on a block, µs"
LEAST_DRAWN = 20  # blocks


@dataclass(frozen=True, slots=True)
class Plan:
    """`quarter`: which part of each set; 3 was never trained or calibrated on."""

    quarter: int = TEST
    public_below: float = 0.0
    private_from: float = 0.0


TARGETS = (
    Target("recall of private blocks", 0.98, lambda found: found["overall"][ALL]["recall"]["share"]),
    Target("clean blocks held private", 0.15, lambda found: found["overall"][ALL]["held_clean"]["share"], "at most"),
    Target(TIER_1, 100.0, value_of("latency_us", TIER_1), "at most"),
    Target(TIER_2, 500.0, value_of("latency_us", TIER_2), "at most"),
)


@dataclass
class Results(documents.Results):
    plan: Plan
    blocks: list[Block] = field(default_factory=list)
    latency_us: dict[str, float] = field(default_factory=dict)
    redaction: list[Row] = field(default_factory=list)
    redaction_of_clean: Row = field(default_factory=dict)
    targets = TARGETS

    def numbers(self) -> Document:
        return {
            "overall": self._rates(self.blocks),
            "datasets": self._by("dataset"),
            "languages": self._by("language"),
            "latency_us": self.latency_us,
            "redaction": {"secrets": self.redaction, "clean": self.redaction_of_clean},
        }

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


def _rates_table(title: str, by_name: Row) -> Table:
    rows = [{"name": name, **rates[ALL]} for name, rates in by_name.items()]
    columns: dict[str, str | Cell] = {
        "": "name",
        "recall": lambda row: rate_cell(row["recall"]),
        "of": lambda row: row["recall"]["of"],
        "clean held": lambda row: rate_cell(row["held_clean"]),
        "of clean": lambda row: row["held_clean"]["of"],
    }
    return Table.of(title, rows, columns)


def tables(document: Document) -> list[Table]:
    return [
        _rates_table("Sets", {"all": document["overall"], **document["datasets"]}),
        _rates_table("Languages", document["languages"]),
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
