"""Choose tier 2's thresholds on quarter 2 of the shared sets, and write them beside the weights:
`python scripts/calibrate_tagger.py --shared DIR --weights TAGGER.npz`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from cloister.bench.detection.data import CALIBRATION, read_sets
from cloister.bench.detection.measure import Block, judge, over_isolated, recall, threshold_for
from cloister.prefix.detection.pipeline import Pipeline
from cloister.prefix.detection.rules import RuleSet, shipped_rules
from cloister.prefix.detection.tagger import Tagger

WANTED, SURE = 0.98, 0.02
"""Of the private blocks, the share to hold back; of the clean ones, the share that may be called private outright."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, required=True, help="the folder that has data/")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--most", type=int, default=1 << 30, help="texts of each set")
    arguments = parser.parse_args()
    with np.load(arguments.weights) as loaded:
        arrays = dict(loaded)
    pipeline = Pipeline(RuleSet(shipped_rules()), Tagger(arrays))
    taken: dict[str, int] = {}
    blocks: list[Block] = []
    for sample in read_sets(arguments.shared):
        if sample.quarter == CALIBRATION and taken.get(sample.dataset, 0) < arguments.most:
            taken[sample.dataset] = taken.get(sample.dataset, 0) + 1
            blocks += judge(pipeline, sample)
    for wanted in (0.9, 0.95, 0.97, 0.98, 0.99):
        at = threshold_for(blocks, wanted)
        found = recall(blocks, lambda block, at=at: block.tier1 or block.score >= at).as_json()
        cost = over_isolated(blocks, lambda block, at=at: block.tier1 or block.score >= at).as_json()
        print(f"threshold {at:.4f}: recall {found}, clean held {cost}", flush=True)
    public = threshold_for(blocks, WANTED)
    clean = sorted(block.score for block in blocks if not block.private)
    private = max(public, clean[int((1 - SURE) * len(clean))])
    np.savez_compressed(arguments.weights, **{**arrays, "thresholds": np.array([public, private])})
    print(f"public below {public:.4f}, private from {private:.4f}")


if __name__ == "__main__":
    main()
