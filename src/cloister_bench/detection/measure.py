"""Runs detection over labelled texts, block by block, and times its tiers. Prints and writes nothing."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import quantiles
from time import process_time_ns

from cloister.detection.folding import fold
from cloister.detection.pipeline import Pipeline, blocks_of, even_blocks
from cloister.messages.controller_detector import Label
from cloister_bench.detection.data import Sample
from cloister_bench.suite.documents import Row, rate_of

BLOCK_CHARACTERS = 64
PROMPT_CHARACTERS = 2304  # about 512 tokens
PROMPTS = 200
UNKNOWN = "?"


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


TIERS: dict[str, Callable[[Block, float], bool]] = {
    "tier 1": lambda block, _: block.tier1,
    "tier 2": lambda block, public: block.score >= public,
    "tiers 1 and 2": lambda block, _: block.label is not Label.PUBLIC,
}


def rates(blocks: Iterable[Block], held: Callable[[Block], bool]) -> dict[str, Row]:
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
