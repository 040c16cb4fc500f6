"""Train tier 2 of detection: `python -m cloister_bench.tagger.train --shared DIR --out TAGGER.npz`.

It trains on what it generates (seeded) and on quarters 0 and 1 of the shared sets whose licences permit it: presidio
(MIT), PUPA (MIT, ODC-BY), WNUT-17 (CC BY 4.0), self-instruct and Arena-Hard (Apache-2.0),
awesome-chatgpt-prompts (CC0), prompt-extraction and InjecGuard (MIT), and paragraphs of Wikipedia (WikiText-2, CC
BY-SA) for their common words. Quarter 2 chooses the thresholds, quarter 3 is for tests; what has eight words in a row
in common with either is left out. Nothing is trained on pii_anon or MT-Bench.

Several nets are trained in turn, each with its own order of the words; the tagger takes the mean of their
logits. Minutes on a GPU with cores that generate, hours on two cores. Needs torch; what it writes needs numpy alone."""

import argparse
import os
import random
import time
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from cloister.detection.folding import fold
from cloister.detection.pipeline import Pipeline
from cloister.detection.rules import RuleSet, shipped_rules
from cloister.detection.tagger import Tagger
from cloister.detection.words import BUCKETS, FEATURES, split
from cloister_bench.detection.data import CALIBRATION, read_sets
from cloister_bench.detection.results import examined, threshold_for
from cloister_bench.suite.documents import wilson
from cloister_bench.tagger.material import Material, joined
from cloister_bench.tagger.values import UNIT, Text

NETS = 4
DIMENSION, HIDDEN, DILATIONS = 24, 32, (1, 2, 4)
CLASSES = 9
WIDTH = 5
SEED = 21
STEP_WORDS = 8192
LETTERS, SHAPES, WHOLE = [0, 1, 2, 3, 4, 5, 8], [6, 7], [0, 8]  # features of a word's letters, shape, whole
LEVELS = 15  # of a table's numbers, so that the file is small
RATE, DECAY, AVERAGE = 6e-3, 0.01, 0.998  # of learning; how weights shrink, and how slowly their mean moves
PRIVATE, SMALL = 0.5, 2.5  # weights of private words and of clean ones without a capital; others: 1
BLANK, HIDE = 0.2, 0.3  # shares of words with hidden letters, and hidden as a whole
DROPOUT, SMOOTH = 0.2, 0.02
PAD_WORDS = 8  # as far as the widest layer reaches
BETWEEN = "\n\n"
TEXTS_AT_ONCE = 400
PART_WORDS = 250_000
WANTED = {None: 0.985, "pupa": 0.90}  # private blocks held back: the lower end of the share's 95% interval
SURE = 0.02  # share of clean blocks that may be called private outright
Tensors = dict[str, torch.Tensor]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(BUCKETS + 1, DIMENSION) * 0.1)
        sizes = zip((DIMENSION, HIDDEN, HIDDEN), DILATIONS, strict=True)
        self.layers = nn.ModuleList(
            nn.Conv1d(size, HIDDEN, WIDTH, padding="same", dilation=dilation) for size, dilation in sizes
        )
        self.out = nn.Linear(HIDDEN, CLASSES)

    def forward(self, features: torch.Tensor, trigrams: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """(words, CLASSES) of features (words, FEATURES), zero beyond a text. In training some words hide their
        letters, so that unseen ones are known by their neighbours and shape."""
        inside = (features[:, :1] != BUCKETS).float()
        lettered = torch.ones_like(inside)
        if self.training:
            chances = torch.rand_like(inside)
            lettered = (chances > BLANK).float()
            features = features.clone()
            features[:, WHOLE] = torch.where(chances < BLANK + HIDE, BUCKETS, features[:, WHOLE])
            features[torch.rand(features.shape, device=features.device) < 0.1] = BUCKETS
        bag = partial(nn.functional.embedding_bag, weight=self.table, padding_idx=BUCKETS)
        letters = bag(features[:, LETTERS], mode="sum") + bag(trigrams, offsets=offsets, mode="mean")
        hidden = ((bag(features[:, SHAPES], mode="sum") + letters * lettered) * inside).T
        for number, layer in enumerate(self.layers):
            following = nn.functional.dropout(torch.relu(layer(hidden)), DROPOUT, self.training)
            hidden = (following if number == 0 else hidden + following) * inside.T
        return self.out(hidden.T)


def loss_of(scores: torch.Tensor, labels: torch.Tensor, small: torch.Tensor) -> torch.Tensor:
    """Cross entropy, smoothed. A unit is private, of unknown kind; words of unknown class do not count."""
    logs = nn.functional.log_softmax(scores, 1)
    loss = -logs.gather(1, labels.clamp(0, CLASSES - 1).unsqueeze(1)).squeeze(1)
    anyone = torch.logsumexp(logs[:, 1:], 1)
    loss = torch.where(labels == UNIT, -anyone, loss)
    loss = loss * (1 - SMOOTH) - SMOOTH * logs.mean(1)
    clean = torch.where(small, SMALL, 1.0)
    weight = torch.where(labels > 0, PRIVATE, clean) * (labels >= 0)
    return (loss * weight).sum() / weight.sum()


def batch(pool: Tensors, start: int) -> tuple[torch.Tensor, ...]:
    """The net's inputs, labels, and which words are small."""
    end = start + STEP_WORDS
    first = pool["first"][start : end + 1]
    trigrams = pool["trigrams"][int(first[0]) : int(first[-1])].long()
    features, labels, small = (pool[name][start:end] for name in ("features", "labels", "small"))
    return features.long(), trigrams, first[:-1] - first[0], labels.long(), small


def trained(pool: Tensors, steps: int, device: torch.device) -> nn.Module:
    """The running mean of the weights."""
    net = Net().to(device)
    averaged = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(AVERAGE))
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=0.15)
    parts = range(0, len(pool["labels"]) - STEP_WORDS + 1, STEP_WORDS)
    order = [part for _ in range(-(-steps // len(parts))) for part in random.sample(parts, len(parts))]
    begun, lost = time.monotonic(), torch.zeros((), device=device)
    for start in order[:steps]:
        *inputs, labels, small = batch(pool, start)
        loss = loss_of(net(*inputs), labels, small)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        averaged.update_parameters(net)
        lost += loss.detach()
    print(f"{steps} steps: {time.monotonic() - begun:.0f} s, loss {float(lost) / steps:.3f}", flush=True)
    return averaged.module.cpu()


def packed(nets: list[nn.Module]) -> dict[str, np.ndarray]:
    """The tables beside one another in int8 with a scale for each column, the rest in half precision."""
    states = [{name: one.numpy() for name, one in net.state_dict().items()} for net in nets]
    table = np.concatenate([state["table"][:BUCKETS] for state in states], axis=1)
    scale = np.abs(table).max(0) / LEVELS
    arrays = {"table": np.round(table / scale).astype(np.int8), "scale": scale.astype(np.float32)}
    for number in range(len(DILATIONS)):
        kernels = np.stack([state[f"layers.{number}.weight"] for state in states])  # nets, hidden, inputs, width
        arrays[f"kernel{number}"] = kernels.transpose(0, 3, 2, 1).reshape(len(nets), -1, HIDDEN).astype(np.float16)
        arrays[f"bias{number}"] = np.stack([state[f"layers.{number}.bias"] for state in states]).astype(np.float16)
    arrays["out"] = np.stack([state["out.weight"].T for state in states]).astype(np.float16)
    arrays["out_bias"] = np.mean([state["out.bias"] for state in states], axis=0).astype(np.float16)
    arrays["dilations"] = np.array(DILATIONS, dtype=np.int64)
    return arrays


def gathered(shared: Path, words: int) -> dict[str, np.ndarray]:
    """`words` words with their features, labels and pads between texts, as flat arrays, made part by part."""
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("fork")) as pool:
        parts = list(pool.map(partial(_part, shared), range(max(1, words // PART_WORDS))))
    return _together(parts)


def _part(shared: Path, number: int) -> dict[str, np.ndarray]:
    draw, material = random.Random(1000 * SEED + number), _material(shared)
    parts: list[dict[str, np.ndarray]] = []
    while sum(len(part["labels"]) for part in parts) < PART_WORDS:
        parts.append(labelled([material.draw(draw) for _ in range(TEXTS_AT_ONCE)]))
    return _together(parts)


@cache
def _material(shared: Path) -> Material:
    return Material(shared)


def _together(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
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
    counts = np.ones(total, dtype=np.int64)
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
    parser.add_argument("--words", type=int, default=14_000_000, help="words generated for all nets, pads included")
    parser.add_argument("--steps", type=int, default=1000, help=f"of {STEP_WORDS} words for each net")
    arguments = parser.parse_args()
    begun, device = time.monotonic(), torch.device(arguments.device)
    pool = {name: torch.from_numpy(one) for name, one in gathered(arguments.shared, arguments.words).items()}
    print(f"{len(pool['labels'])} words, {time.monotonic() - begun:.0f} s", flush=True)
    counts = pool.pop("counts")
    pool["first"] = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0)))
    pool = {name: one.to(device) for name, one in pool.items()}
    random.seed(SEED)
    torch.manual_seed(SEED)
    arrays = packed([trained(pool, arguments.steps, device) for _ in range(NETS)])
    arrays["thresholds"] = thresholds(arrays, arguments.shared)
    np.savez_compressed(arguments.out, **arrays)
    print(f"{arguments.out}: {arguments.out.stat().st_size / 1e6:.1f} MB, thresholds {arrays['thresholds']}")


if __name__ == "__main__":
    main()
