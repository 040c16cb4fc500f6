"""Several nets of the tagger, trained together: each has its own table and layers, and its own order of the words."""

import random
import time

import numpy as np
import torch
from torch import nn

from cloister.detection.words import BUCKETS
from cloister_bench.tagger.values import UNIT

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
