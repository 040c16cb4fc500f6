"""Train tier 2 of detection: `python scripts/train_tagger.py --shared DIR --out TAGGER.npz`.

It trains on what it generates (scripts/tagger, seeded) and on the quarters 0 and 1 of the shared sets whose licences
permit it: presidio (MIT), PUPA (MIT, ODC-BY), WNUT-17 (CC BY 4.0), nannigalaxy (MIT), self-instruct and Arena-Hard
(Apache-2.0), awesome-chatgpt-prompts (CC0), prompt-extraction and InjecGuard (MIT), paragraphs of Wikipedia (CC BY-SA:
WikiText-2, XQuAD, Natural Questions) for their common words, and a novel in the public domain. Quarter 2 is for
`calibrate_tagger.py`, which comes next, quarter 3 for tests; what has eight words in a row in common with either is
left out. Nothing is trained on pii_anon or MT-Bench.

A minute on a GPU with cores beside it that generate, hours on two cores. Needs torch; what it writes needs numpy alone.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from torch import nn

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "scripts")]

from tagger.corpora import Text  # noqa: E402
from tagger.material import Material, joined  # noqa: E402
from tagger.values import UNIT  # noqa: E402

from cloister.prefix.detection.folding import fold  # noqa: E402
from cloister.prefix.detection.words import BUCKETS, FEATURES, split  # noqa: E402

CLASSES = 9
DIMENSION, HIDDEN = 24, 32
DILATIONS = (1, 2, 4)
WIDTH = 5
PAD_WORDS = 8
LETTERS, SHAPES, WHOLE = [0, 1, 2, 3, 4, 5, 8], [6, 7], [0, 8]
"""Which features tell a word's letters, its shape, and which the whole word."""

BETWEEN = "\n\n"
TEXTS_AT_ONCE = 400


PART_WORDS = 250_000
_material: Material | None = None


def gathered(material: Material, seed: int, words: int, processes: int) -> dict[str, np.ndarray]:
    """So many words with their features, labels and pads between texts, as flat arrays, made part by part."""
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
    return {"features": features, "trigrams": trigrams, "counts": counts, "labels": labels}


class Net(nn.Module):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.options = options
        self.table = nn.Embedding(BUCKETS + 1, DIMENSION, padding_idx=BUCKETS)
        nn.init.normal_(self.table.weight, std=0.1)
        sizes = (DIMENSION, *[HIDDEN] * len(DILATIONS))
        self.layers = nn.ModuleList(
            nn.Conv1d(sizes[i], sizes[i + 1], WIDTH, dilation=d, padding=d * (WIDTH // 2))
            for i, d in enumerate(DILATIONS)
        )
        self.out = nn.Linear(HIDDEN, CLASSES)

    def forward(
        self, features: torch.Tensor, trigrams: torch.Tensor, offsets: torch.Tensor, train: bool
    ) -> torch.Tensor:
        """Of one long row of words: (n, CLASSES). Pads are zeros in every layer, as what lies beyond a text is.

        In training some words hide their letters, wholly or in part, so that what was never seen is known by its
        neighbours and its shape, and no text is learnt by heart."""
        inside = (features[:, 0] != BUCKETS).float().unsqueeze(0)
        lettered = torch.ones(len(features), 1, device=features.device)
        if train:
            chances = torch.rand(len(features), 1, device=features.device)
            lettered = (chances > self.options.blank).float()
            hidden_words = chances < self.options.blank + self.options.hide
            features = features.clone()
            features[:, WHOLE] = torch.where(hidden_words, BUCKETS, features[:, WHOLE])
            features[torch.rand(features.shape, device=features.device) < 0.1] = BUCKETS
        letters = self.table(features[:, LETTERS]).sum(1)
        letters = letters + nn.functional.embedding_bag(
            trigrams, self.table.weight, offsets, mode="mean", padding_idx=BUCKETS
        )
        hidden = (self.table(features[:, SHAPES]).sum(1) + letters * lettered).t() * inside
        for number, layer in enumerate(self.layers):
            following = torch.relu(layer(hidden.unsqueeze(0)).squeeze(0))
            if train:
                following = nn.functional.dropout(following, self.options.dropout)
            hidden = (following if number == 0 else hidden + following) * inside
        return self.out(hidden.t())


def loss_of(scores: torch.Tensor, labels: torch.Tensor, private: float, smooth: float) -> torch.Tensor:
    """Cross entropy, smoothed; what is private counts `private` times as much. Of a unit is known only that it is
    somebody's."""
    logs = nn.functional.log_softmax(scores, 1)
    told = nn.functional.nll_loss(logs, labels.clamp(0, CLASSES - 1), reduction="none")
    told = torch.where(labels == UNIT, -torch.logsumexp(logs[:, 1:], 1), told)
    told = told * (1 - smooth) - smooth * logs.mean(1)
    weight = torch.where(labels > 0, private, 1.0) * (labels >= 0)
    return (told * weight).sum() / weight.sum()


def train(made: dict[str, np.ndarray], arguments: argparse.Namespace, seed: int) -> Net:
    device = torch.device(arguments.device)
    torch.manual_seed(seed)
    net = Net(arguments).to(device)
    step_words = 8192
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=arguments.decay)
    tensors = {name: torch.from_numpy(array).to(device) for name, array in made.items()}
    offsets = torch.cat((torch.zeros(1, dtype=torch.int64, device=device), tensors["counts"].long().cumsum(0)))
    starts = list(range(0, len(made["labels"]), step_words))
    bounds = offsets.cpu()[[*starts, len(made["labels"])]].tolist()
    first_of = dict(zip((*starts, len(made["labels"])), bounds, strict=True))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, arguments.rate, total_steps=arguments.rounds * len(starts), pct_start=0.15
    )
    averaged = torch.optim.swa_utils.AveragedModel(
        net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(arguments.average)
    )
    for number in range(arguments.rounds):
        begun, losses = time.monotonic(), torch.zeros(1, device=device)
        random.Random(number).shuffle(starts)
        for start in starts:
            end = min(start + step_words, len(made["labels"]))
            first, last = first_of[start], first_of[end]
            scores = net(
                tensors["features"][start:end].long(),
                tensors["trigrams"][first:last].long(),
                offsets[start:end] - first,
                True,
            )
            loss = loss_of(scores, tensors["labels"][start:end].long(), arguments.private, arguments.smooth)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            averaged.update_parameters(net)
            losses += loss.detach()
        print(
            f"round {number + 1}: loss {losses.item() / len(starts):.4f}, {time.monotonic() - begun:.0f} s", flush=True
        )
    return averaged.module


def packed(net: Net) -> dict[str, np.ndarray]:
    """What the tagger loads: the table in int8 with a scale for each column, the rest in half precision."""
    table = net.table.weight.detach().cpu().numpy()[:BUCKETS]
    scale = np.abs(table).max(0) / 127
    arrays = {"table": np.round(table / scale).astype(np.int8), "scale": scale.astype(np.float32)}
    for number, layer in enumerate(net.layers):
        kernel = layer.weight.detach().cpu().numpy()  # (out, in, width)
        arrays[f"kernel{number}"] = kernel.transpose(2, 1, 0).reshape(-1, kernel.shape[0]).astype(np.float16)
        arrays[f"bias{number}"] = layer.bias.detach().cpu().numpy().astype(np.float16)
    arrays["out"] = net.out.weight.detach().cpu().numpy().T.astype(np.float16)
    arrays["out_bias"] = net.out.bias.detach().cpu().numpy().astype(np.float16)
    arrays["dilations"] = np.array(DILATIONS, dtype=np.int64)
    return arrays


def fused(members: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Several nets side by side: their tables beside one another, the rest with a net in each row."""
    arrays = {name: np.concatenate([each[name] for each in members], axis=-1) for name in ("table", "scale")}
    layers = [f"{kind}{number}" for kind in ("kernel", "bias") for number in range(len(DILATIONS))]
    arrays |= {name: np.stack([each[name] for each in members]) for name in (*layers, "out")}
    arrays["out_bias"] = np.mean([each["out_bias"] for each in members], axis=0).astype(np.float16)
    arrays["dilations"] = members[0]["dilations"]
    return arrays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, required=True, help="the folder that has data/")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--members", type=int, default=5, help="nets that are trained, each on words of its own")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--words", type=int, default=8_000_000, help="words generated for each, pads included")
    parser.add_argument("--processes", type=int, default=2, help="that generate them")
    parser.add_argument("--private", type=float, default=0.5, help="what a private word weighs")
    parser.add_argument("--people", type=float, default=0.3, help="share of known names passed over in clean prompts")
    parser.add_argument("--rate", type=float, default=1e-2)
    parser.add_argument("--dropout", type=float, default=0.2, help="of hidden units")
    parser.add_argument("--blank", type=float, default=0.2, help="share of words that hide all their letters")
    parser.add_argument("--hide", type=float, default=0.3, help="share of words known by parts of theirs alone")
    parser.add_argument("--smooth", type=float, default=0.02, help="label smoothing")
    parser.add_argument("--decay", type=float, default=0.01, help="of weights")
    parser.add_argument("--average", type=float, default=0.998, help="of weights, from step to step")
    parser.add_argument("--seed", type=int, default=21)
    arguments = parser.parse_args()
    material, members = Material(arguments.shared, arguments.people), []
    for member in range(arguments.members):
        begun = time.monotonic()
        made = gathered(material, arguments.seed + member, arguments.words, arguments.processes)
        print(f"{len(made['labels'])} words, {time.monotonic() - begun:.0f} s", flush=True)
        members.append(packed(train(made, arguments, arguments.seed + member)))
    np.savez_compressed(arguments.out, **fused(members))
    print(f"{arguments.out}: {arguments.out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
