"""Train tier 2 of detection: `python -m cloister_bench.tagger.train --shared DIR --out TAGGER.npz`.

It trains on what it generates (seeded) and on quarters 0 and 1 of the shared sets whose licences permit it: presidio
(MIT), PUPA (MIT, ODC-BY), WNUT-17 (CC BY 4.0), nannigalaxy (MIT), self-instruct and Arena-Hard (Apache-2.0),
awesome-chatgpt-prompts (CC0), prompt-extraction and InjecGuard (MIT), and paragraphs of Wikipedia (WikiText-2, CC
BY-SA) for their common words. Quarter 2 chooses the thresholds, quarter 3 is for tests; what has eight words in a row
in common with either is left out. Nothing is trained on pii_anon or MT-Bench.

Several nets are trained at once, each with its own table, layers and order of the words; the tagger takes the mean of
their logits. Half a minute on a GPU with cores that
generate, hours on two cores. Needs torch; what it writes needs numpy alone."""

import argparse
import random
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from torch import nn

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

CLASSES = 9
WIDTH = 5
STEP_WORDS = 8192
LETTERS, SHAPES, WHOLE = [0, 1, 2, 3, 4, 5, 8], [6, 7], [0, 8]  # features of a word's letters, shape, whole
LEVELS = 15  # of a table's numbers, so that the file is small
RATE, DECAY, AVERAGE = 6e-3, 0.01, 0.998  # of learning; how weights shrink, and how slowly their mean moves
PRIVATE, SMALL = 0.5, 2.5  # weights of private words and of clean ones without a capital; others: 1
BLANK, HIDE = 0.2, 0.3  # shares of words with hidden letters, and hidden as a whole
DROPOUT, SMOOTH = 0.2, 0.02
Tensors = dict[str, torch.Tensor]


class Nets(nn.Module):
    def __init__(self, count: int, dimension: int, hidden: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.count, self.dilations = count, dilations
        self.table = nn.Parameter(torch.randn(count * (BUCKETS + 1), dimension) * 0.1)
        self.table.data.view(count, BUCKETS + 1, dimension)[:, BUCKETS] = 0
        sizes = (dimension, *[hidden] * len(dilations))
        self.kernels, self.biases = nn.ParameterList(), nn.ParameterList()
        for size in sizes[:-1]:
            self.kernels.append(_drawn((count, WIDTH * size, hidden), WIDTH * size))
            self.biases.append(_drawn((count, 1, hidden), WIDTH * size))
        self.out = _drawn((count, hidden, CLASSES), hidden)
        self.out_bias = _drawn((count, 1, CLASSES), hidden)

    def forward(self, features: torch.Tensor, trigrams: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """(nets, words, CLASSES) of features (nets, words, FEATURES), zero beyond a text. In training some words hide
        their letters, so that unseen ones are known by their neighbours and shape."""
        count, words, _ = features.shape
        first = torch.arange(count, device=features.device)[:, None, None] * (BUCKETS + 1)
        inside = (features[:, :, 0] != BUCKETS).float().unsqueeze(2)
        lettered = torch.ones_like(inside)
        if self.training:
            chances = torch.rand(count, words, 1, device=features.device)
            lettered = (chances > BLANK).float()
            features = features.clone()
            hidden_words = chances < BLANK + HIDE
            features[:, :, WHOLE] = torch.where(hidden_words, BUCKETS, features[:, :, WHOLE])
            features[torch.rand(features.shape, device=features.device) < 0.1] = BUCKETS
        features = features + first
        letters = nn.functional.embedding_bag(features[:, :, LETTERS].reshape(-1, len(LETTERS)), self.table, mode="sum")
        letters = letters + nn.functional.embedding_bag(trigrams, self.table, offsets, mode="mean")
        shapes = nn.functional.embedding_bag(features[:, :, SHAPES].reshape(-1, len(SHAPES)), self.table, mode="sum")
        hidden = (shapes.view(count, words, -1) + letters.view(count, words, -1) * lettered) * inside
        for number, dilation in enumerate(self.dilations):
            following = torch.relu(torch.baddbmm(self.biases[number], _around(hidden, dilation), self.kernels[number]))
            if self.training:
                following = nn.functional.dropout(following, DROPOUT)
            hidden = (following if number == 0 else hidden + following) * inside
        return torch.baddbmm(self.out_bias, hidden, self.out)


def _drawn(shape: tuple[int, ...], inputs: int) -> nn.Parameter:
    return nn.Parameter((torch.rand(shape) * 2 - 1) / inputs**0.5)


def _around(hidden: torch.Tensor, dilation: int) -> torch.Tensor:
    """Each word's row with its neighbours' side by side. Pads between texts are zero, and as wide as this reaches."""
    reach, words = dilation * (WIDTH // 2), hidden.shape[1]
    padded = nn.functional.pad(hidden, (0, 0, reach, reach))
    return torch.cat([padded[:, place : place + words] for place in range(0, WIDTH * dilation, dilation)], 2)


def loss_of(scores: torch.Tensor, labels: torch.Tensor, small: torch.Tensor) -> torch.Tensor:
    """Of each net: cross entropy, smoothed. A unit is private, of unknown kind; words of unknown class do not count."""
    logs = nn.functional.log_softmax(scores, 2)
    loss = -logs.gather(2, labels.clamp(0, CLASSES - 1).unsqueeze(2)).squeeze(2)
    anyone = torch.logsumexp(logs[:, :, 1:], 2)
    loss = torch.where(labels == UNIT, -anyone, loss)
    loss = loss * (1 - SMOOTH) - SMOOTH * logs.mean(2)
    clean = torch.where(small, SMALL, 1.0)
    weight = torch.where(labels > 0, PRIVATE, clean) * (labels >= 0)
    return (loss * weight).sum(1) / weight.sum(1)


def on_device(made: dict[str, np.ndarray], device: torch.device) -> Tensors:
    tensors = {name: torch.from_numpy(array).to(device) for name, array in made.items()}
    counts = tensors.pop("counts").long()
    tensors["first"] = torch.cat((torch.zeros(1, dtype=torch.int64, device=device), counts.cumsum(0)))
    return tensors


def batch(pool: Tensors, starts: list[int]) -> tuple[torch.Tensor, ...]:
    spans = [(start, start + STEP_WORDS) for start in starts]
    features, labels, small = (
        torch.stack([pool[name][start:end] for start, end in spans]) for name in ("features", "labels", "small")
    )
    trigrams, offsets, total = [], [], 0
    for net, (start, end) in enumerate(spans):
        first, last = (int(pool["first"][at]) for at in (start, end))
        trigrams.append(pool["trigrams"][first:last].long() + net * (BUCKETS + 1))
        offsets.append(pool["first"][start:end] + (total - first))
        total += last - first
    return features.long(), torch.cat(trigrams), torch.cat(offsets), labels.long(), small


def train(nets: Nets, pool: Tensors, steps: int, seed: int) -> None:
    """Each net in its own order of the words; the running means of their weights."""
    random.seed(seed)
    optimizer = torch.optim.AdamW(nets.parameters(), lr=RATE, weight_decay=DECAY, fused=nets.table.is_cuda)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=0.15)
    averaged = [parameter.detach().clone() for parameter in nets.parameters()]
    parts = range(0, len(pool["labels"]) - STEP_WORDS + 1, STEP_WORDS)
    rounds = -(-steps // len(parts))
    orders = [[part for _ in range(rounds) for part in random.sample(parts, len(parts))] for _ in range(nets.count)]
    begun, losses = time.monotonic(), torch.zeros(nets.count, device=nets.table.device)
    nets.train()
    for step in range(steps):
        features, trigrams, offsets, labels, small = batch(pool, [order[step] for order in orders])
        loss = loss_of(nets(features, trigrams, offsets), labels, small)
        optimizer.zero_grad()
        loss.sum().backward()
        assert nets.table.grad is not None
        nets.table.grad.view(nets.count, BUCKETS + 1, -1)[:, BUCKETS] = 0
        optimizer.step()
        schedule.step()
        torch._foreach_lerp_(averaged, list(nets.parameters()), 1 - AVERAGE)
        losses += loss.detach()
    with torch.no_grad():
        for parameter, mean in zip(nets.parameters(), averaged, strict=True):
            parameter.copy_(mean)
    nets.eval()
    lost = " ".join(f"{each:.3f}" for each in (losses / steps).tolist())
    print(f"{steps} steps: {time.monotonic() - begun:.0f} s, loss {lost}", flush=True)


def packed(nets: Nets) -> dict[str, np.ndarray]:
    """The tables beside one another in int8 with a scale for each column, the rest in half precision."""
    table = nets.table.detach().view(nets.count, BUCKETS + 1, -1)[:, :BUCKETS].cpu().numpy()
    table = table.transpose(1, 0, 2).reshape(BUCKETS, -1)
    scale = np.abs(table).max(0) / LEVELS
    arrays = {"table": np.round(table / scale).astype(np.int8), "scale": scale.astype(np.float32)}
    half = lambda each: each.detach().cpu().numpy().astype(np.float16)  # noqa: E731
    for number, (kernel, bias) in enumerate(zip(nets.kernels, nets.biases, strict=True)):
        arrays |= {f"kernel{number}": half(kernel), f"bias{number}": half(bias.squeeze(1))}
    arrays["out"] = half(nets.out)
    arrays["out_bias"] = half(nets.out_bias.squeeze(1)).mean(0).astype(np.float16)
    arrays["dilations"] = np.array(nets.dilations, dtype=np.int64)
    return arrays


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
