"""The targets of `bench mpc`: what is set as a goal for MPCache, as ratios over other ways of keeping the cache."""

from __future__ import annotations

from functools import partial

from cloister.bench.mpc.baselines.plan import STATIC
from cloister.bench.suite.results import Document, Target, find

OURS = "mpcache"
LENGTHS = (1024, 2048)
LEAST = {"megabytes": 5.0, "messages": 1.5, "lan_seconds": 2.0}
NAMES = {
    "megabytes": "communication",
    "messages": "messages",
    "lan_seconds": "latency on a LAN",
    "lan_cpu_seconds": "latency on a LAN from processor seconds",
}
BUDGET = 0.1
LOWER_IS_BETTER = ("wikitext2", "novel", "generated_text")  # perplexities
BASELINES = ("full", "full_naive", "full_lean")  # the targets are set against the first, which is tuned


def _saving(document: Document, baseline: str, seq: int, key: str) -> float | None:
    ours, theirs = (find(document["runs"], method=name, protocol="aby3", seq=seq) for name in (OURS, baseline))
    return round(theirs[key] / ours[key], 3) if ours and theirs and ours[key] else None


def _quality_kept(document: Document, method: str = OURS) -> float | None:
    """At the budget of the target: the mean over tasks of what is kept of the full cache's score."""
    shares = [
        row["full_score"] / row["score"] if row["task"] in LOWER_IS_BETTER else row["score"] / row["full_score"]
        for row in document["quality"]
        if row["method"] == method and row["budget"] == BUDGET and row["score"] and row["full_score"]
    ]
    return round(sum(shares) / len(shares), 4) if shares else None


def _quality_ahead(document: Document) -> float | None:
    ours = _quality_kept(document)
    static = [kept for method in STATIC if (kept := _quality_kept(document, method)) is not None]
    return round(ours / max(static), 4) if ours is not None and static else None


_QUALITY = {"baseline": "full", "seq": None}
TARGETS = (
    *(
        Target(
            f"{NAMES[key]}, {baseline} over {OURS}, T = {seq}",
            LEAST.get(key) if baseline == BASELINES[0] else None,
            partial(_saving, baseline=baseline, seq=seq, key=key),
            labels={"baseline": baseline, "seq": seq},
        )
        for baseline in BASELINES
        for seq in LENGTHS
        for key in NAMES
    ),
    Target(f"quality kept at {BUDGET:.0%} of the cache", 0.98, _quality_kept, labels=_QUALITY),
    Target(f"quality over the best static baseline's at {BUDGET:.0%}", 1.0, _quality_ahead, labels=_QUALITY),
)
