"""Choose tier 2's thresholds on quarter 2 of the shared sets, and write them beside the weights:
`python -m cloister_bench.tagger.calibrate --shared DIR --weights TAGGER.npz`.
"""

import argparse
from pathlib import Path

import numpy as np

from cloister.detection.pipeline import Pipeline
from cloister.detection.rules import RuleSet, shipped_rules
from cloister.detection.tagger import Tagger
from cloister_bench.detection.data import CALIBRATION, read_sets
from cloister_bench.detection.measure import examined, threshold_for
from cloister_bench.suite.documents import wilson

WANTED = {None: 0.985, "pupa": 0.90}  # private blocks held back: the lower end of the share's 95% interval
SURE = 0.02  # share of clean blocks that may be called private outright


def share_for(bound: float, total: int) -> float:
    """The least share of `count` whose confidence interval begins at `bound`."""
    return next((hits / total for hits in range(total + 1) if wilson(hits, total)[0] >= bound), 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, required=True, help="the folder that has data/")
    parser.add_argument("--weights", type=Path, required=True)
    arguments = parser.parse_args()
    with np.load(arguments.weights) as loaded:
        arrays = dict(loaded)
    pipeline = Pipeline(RuleSet(shipped_rules()), Tagger(arrays))
    samples = (sample for sample in read_sets(arguments.shared) if sample.quarter == CALIBRATION)
    blocks = [block for sample in samples for block in examined(pipeline, sample)]
    public = 1.0
    for dataset, bound in WANTED.items():
        own = [block for block in blocks if dataset in (None, block.dataset)]
        share = share_for(bound, sum(block.private for block in own))
        public = min(public, at := threshold_for(own, share))
        print(f"{dataset or 'all sets'}: a recall of {share:.4f}, which is {bound} at least, with {at:.4f}")
    clean = sorted(block.score for block in blocks if not block.private)
    private = max(public, clean[int((1 - SURE) * len(clean))])
    np.savez_compressed(arguments.weights, **{**arrays, "thresholds": np.array([public, private])})
    print(f"public below {public:.4f}, private from {private:.4f}")


if __name__ == "__main__":
    main()
