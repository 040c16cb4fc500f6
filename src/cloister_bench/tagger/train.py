"""Train tier 2 of detection: `python -m cloister_bench.tagger.train --shared DIR --out TAGGER.npz`.

It trains on what it generates (seeded) and on quarters 0 and 1 of the shared sets whose licences permit it: presidio
(MIT), PUPA (MIT, ODC-BY), WNUT-17 (CC BY 4.0), nannigalaxy (MIT), self-instruct and Arena-Hard (Apache-2.0),
awesome-chatgpt-prompts (CC0), prompt-extraction and InjecGuard (MIT), and paragraphs of Wikipedia (WikiText-2, CC
BY-SA) for their common words. Quarter 2 chooses the thresholds, quarter 3 is for tests; what has eight words in a row
in common with either is left out. Nothing is trained on pii_anon or MT-Bench.

Several nets are trained at once; the tagger takes the mean of their logits. Half a minute on a GPU with cores that
generate, hours on two cores. Needs torch; what it writes needs numpy alone.
"""

import argparse
import random
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from cloister.detection.folding import fold
from cloister.detection.pipeline import Pipeline
from cloister.detection.rules import RuleSet, shipped_rules
from cloister.detection.tagger import Tagger
from cloister.detection.words import BUCKETS, FEATURES, split
from cloister_bench.detection.data import CALIBRATION, read_sets
from cloister_bench.detection.measure import examined, threshold_for
from cloister_bench.suite.documents import wilson
from cloister_bench.tagger.material import Material, joined
from cloister_bench.tagger.nets import STEP_WORDS, Nets, on_device, packed, train
from cloister_bench.tagger.values import Text

DIMENSION, HIDDEN, DILATIONS = 24, 32, (1, 2, 4)  # as the tagger that is shipped, which has four such nets
PAD_WORDS = 8  # as far as the widest layer reaches
BETWEEN = "\n\n"
TEXTS_AT_ONCE = 400
PART_WORDS = 250_000
WANTED = {None: 0.985, "pupa": 0.90}  # private blocks held back: the lower end of the share's 95% interval
SURE = 0.02  # share of clean blocks that may be called private outright
_material: Material | None = None


def gathered(material: Material, seed: int, words: int, processes: int) -> dict[str, np.ndarray]:
    """`words` words with their features, labels and pads between texts, as flat arrays, made part by part."""
    global _material
    _material = material
    seeds = range(1000 * seed, 1000 * seed + max(1, words // PART_WORDS))
    with ProcessPoolExecutor(processes, get_context("fork")) as pool:
        parts = list(pool.map(_part, seeds))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _part(seed: int) -> dict[str, np.ndarray]:
    assert _material is not None
    draw = random.Random(seed)
    parts: list[dict[str, np.ndarray]] = []
    while sum(len(part["labels"]) for part in parts) < PART_WORDS:
        parts.append(labelled([_material.draw(draw) for _ in range(TEXTS_AT_ONCE)]))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def labelled(texts: list[Text]) -> dict[str, np.ndarray]:
    """The words of all texts, with pads between one and the next; cut as one text, which is much faster."""
    whole, spans = joined(texts, BETWEEN)
    marks = np.zeros(len(whole) + 1, dtype=np.int8)
    for start, end, kind in spans:
        marks[start:end] = kind
    folded = fold(whole)
    if folded.origin is not None:
        marks = marks[folded.origin]
    cut = split(folded.text)
    ends = np.cumsum([len(text) + len(BETWEEN) for text, _ in texts])
    origins = cut.starts if folded.origin is None else folded.origin[cut.starts]
    place = np.arange(len(cut.starts)) + PAD_WORDS * np.searchsorted(ends, origins, side="right")
    total = int(place[-1]) + 1 + PAD_WORDS
    features = np.full((total, FEATURES), BUCKETS, dtype=np.int32)
    features[place] = cut.features
    labels = np.full(total, -1, dtype=np.int8)
    # The class of a word is that of any of its characters, a known one before an unknown.
    labels[place] = np.maximum.reduceat(marks[:-1], cut.starts)
    unknown = np.minimum.reduceat(marks[:-1], cut.starts) < 0
    labels[place[unknown & (labels[place] == 0)]] = -1
    counts = np.ones(total, dtype=np.int32)
    counts[place] = np.diff(cut.first)
    trigrams = np.full(int(counts.sum()), BUCKETS, dtype=np.int32)
    of_word = np.zeros(total, dtype=bool)
    of_word[place] = True
    trigrams[np.repeat(of_word, counts)] = cut.trigrams
    small = np.zeros(total, dtype=bool)
    first = np.frombuffer(folded.text.encode("utf-32-le", "replace"), dtype=np.uint32)[cut.starts]
    small[place] = [not chr(code).isupper() for code in first.tolist()]
    return {"features": features, "trigrams": trigrams, "counts": counts, "labels": labels, "small": small}


def thresholds(arrays: dict[str, np.ndarray], shared: Path) -> np.ndarray:
    """Public below the first, private from the second: chosen on quarter 2 for recall."""
    pipeline = Pipeline(RuleSet(shipped_rules()), Tagger(arrays))
    samples = (sample for sample in read_sets(shared) if sample.quarter == CALIBRATION)
    blocks = [block for sample in samples for block in examined(pipeline, sample)]
    public = 1.0
    for dataset, bound in WANTED.items():
        own = [block for block in blocks if dataset in (None, block.dataset)]
        total = sum(block.private for block in own)
        enough = (hits / total for hits in range(total + 1) if wilson(hits, total)[0] >= bound)
        public = min(public, threshold_for(own, next(enough, 1.0)))
    clean = sorted(block.score for block in blocks if not block.private)
    return np.array([public, max(public, clean[int((1 - SURE) * len(clean))])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, required=True, help="the folder that has data/")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--members", type=int, default=4, help="nets that are trained at once")
    parser.add_argument("--words", type=int, default=14_000_000, help="words generated for all of them, pads included")
    parser.add_argument("--steps", type=int, default=1000, help=f"of {STEP_WORDS} words for each")
    parser.add_argument("--processes", type=int, default=2, help="that generate them")
    parser.add_argument("--seed", type=int, default=21)
    arguments = parser.parse_args()
    begun, device = time.monotonic(), torch.device(arguments.device)
    torch.backends.cuda.matmul.allow_tf32 = True
    material = Material(arguments.shared)
    made = gathered(material, arguments.seed, arguments.words, arguments.processes)
    print(f"{len(made['labels'])} words, {time.monotonic() - begun:.0f} s", flush=True)
    torch.manual_seed(arguments.seed)
    nets = Nets(arguments.members, DIMENSION, HIDDEN, DILATIONS).to(device)
    pool = on_device(made, device)
    train(nets, pool, arguments.steps, arguments.seed)
    arrays = packed(nets)
    arrays["thresholds"] = thresholds(arrays, arguments.shared)
    np.savez_compressed(arguments.out, **arrays)
    print(f"{arguments.out}: {arguments.out.stat().st_size / 1e6:.1f} MB, thresholds {arrays['thresholds']}")


if __name__ == "__main__":
    main()
