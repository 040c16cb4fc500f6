"""What issue and paper set MPCache as a goal, and whether it was met: looked up in the document of a measurement."""

from __future__ import annotations

from typing import Any

from cloister.bench.mpc.rows import Row, find

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
STATIC = ("h2o", "snapkv", "tova", "streaming")
LOWER_IS_BETTER = ("wikitext2", "novel", "generated_text")  # perplexities
BASELINES = ("full", "full_naive", "full_lean")  # the targets are set against the first, which is tuned


def targets_of(document: dict[str, Any]) -> list[Row]:
    """Every ratio the issue names, and the same against the other two full caches, which have no target."""
    costs = [
        _verdict(document["runs"], baseline, seq, key) for baseline in BASELINES for seq in LENGTHS for key in NAMES
    ]
    return costs + _quality_verdicts(document["quality"])


def _verdict(runs: list[Row], baseline: str, seq: int, key: str) -> Row:
    ours = find(runs, method=OURS, protocol="aby3", seq=seq)
    theirs = find(runs, method=baseline, protocol="aby3", seq=seq)
    ratio = round(theirs[key] / ours[key], 3) if ours and theirs and ours[key] else None
    target = LEAST.get(key) if baseline == BASELINES[0] else None
    met = None if target is None else ratio is not None and ratio >= target
    name = f"{NAMES[key]}, {baseline} over {OURS}, T = {seq}"
    return {"name": name, "baseline": baseline, "seq": seq, "target": target, "measured": ratio, "met": met}


def _quality_verdicts(rows: list[Row]) -> list[Row]:
    """Both at the budget of the target, as means over tasks of what is kept of the full cache's score."""
    ours = _kept(rows, OURS)
    static = [kept for method in STATIC if (kept := _kept(rows, method)) is not None]
    ahead = round(ours / max(static), 4) if ours is not None and static else None
    named = (
        (f"quality kept at {BUDGET:.0%} of the cache", 0.98, ours),
        (f"quality over the best static baseline's at {BUDGET:.0%}", 1.0, ahead),
    )
    return [
        {"name": name, "baseline": "full", "seq": None, "target": target, "measured": found, "met": _met(found, target)}
        for name, target, found in named
    ]


def _kept(rows: list[Row], method: str) -> float | None:
    shares = [
        row["full_score"] / row["score"] if row["task"] in LOWER_IS_BETTER else row["score"] / row["full_score"]
        for row in rows
        if row["method"] == method and row["budget"] == BUDGET and row["score"] and row["full_score"]
    ]
    return round(sum(shares) / len(shares), 4) if shares else None


def _met(found: float | None, target: float) -> bool:
    return found is not None and found >= target
