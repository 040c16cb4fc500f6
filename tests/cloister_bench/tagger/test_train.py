"""What training writes is what the detector reads."""

from __future__ import annotations

import numpy as np
import torch

from cloister.detection.folding import fold
from cloister.detection.tagger import Tagger
from cloister_bench.tagger.train import CLASSES, LEVELS, Net, batch, labelled, loss_of, packed

TEXT = "Ann Lee lives in Ghent, and her number is 1234."


def pool(*texts: str) -> dict[str, torch.Tensor]:
    arrays = {name: torch.from_numpy(one) for name, one in labelled([(text, [(0, 7, 1)]) for text in texts]).items()}
    counts = arrays.pop("counts")
    return {**arrays, "first": torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0)))}


def test_packed_nets_score_words_as_the_trained_ones_do() -> None:
    torch.manual_seed(1)
    nets = [Net().eval() for _ in range(2)]
    for net in nets:  # numbers that the packed form holds without loss
        scale = net.table.data[:-1].abs().amax(0) / LEVELS
        net.table.data[:-1] = torch.round(net.table.data[:-1] / scale) * scale
    *inputs, labels, _ = batch(made := pool(TEXT), 0)
    with torch.no_grad():
        logits = torch.stack([net(*inputs) for net in nets]).mean(0)[made["features"][:, 0] != made["features"].max()]
    expected = 1 - torch.softmax(logits, 1)[:, 0].numpy()
    tags = Tagger(packed(nets)).tag(fold(TEXT).text)
    assert len(tags.scores) == len(expected) and np.abs(tags.scores - expected).max() < 0.01
    assert (labels == 1).sum() == 2, "Ann and Lee"


def test_the_loss_of_a_right_score_is_small_and_of_a_wrong_one_is_not() -> None:
    labels, small = torch.tensor([0, 1, -1]), torch.tensor([True, False, False])
    right = torch.full((3, CLASSES), -9.0)
    right[0, 0] = right[1, 1] = 9.0
    assert loss_of(right, labels, small) < 2 < loss_of(-right, labels, small)
