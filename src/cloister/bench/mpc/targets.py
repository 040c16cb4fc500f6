"""What issue and paper set MPCache as a goal, and whether it was met: looked up in the document of a measurement."""

from __future__ import annotations

from typing import Any

from cloister.bench.mpc.rows import Row, find

OURS = "mpcache"
LENGTHS = (1024, 2048)
LEAST = {"megabytes": 5.0, "messages": 1.5, "lan_seconds": 2.0}
NAMES = {"megabytes": "communication", "messages": "messages", "lan_seconds": "latency on a LAN"}
BASELINES = ("full", "full_naive", "full_lean")  # the targets are set against the first, which is tuned


def targets_of(document: dict[str, Any]) -> list[Row]:
    """Every ratio the issue names, and the same against the other two full caches, which have no target."""
    return [
        _verdict(document["runs"], baseline, seq, key) for baseline in BASELINES for seq in LENGTHS for key in LEAST
    ]


def _verdict(runs: list[Row], baseline: str, seq: int, key: str) -> Row:
    ours = find(runs, method=OURS, protocol="aby3", seq=seq)
    theirs = find(runs, method=baseline, protocol="aby3", seq=seq)
    ratio = round(theirs[key] / ours[key], 3) if ours and theirs and ours[key] else None
    target = LEAST[key] if baseline == BASELINES[0] else None
    met = None if target is None else ratio is not None and ratio >= target
    name = f"{NAMES[key]}, {baseline} over {OURS}, T = {seq}"
    return {"name": name, "baseline": baseline, "seq": seq, "target": target, "measured": ratio, "met": met}
