"""Softmax in whole numbers, so that a row's sums do not depend on the shape of the batch around it.

Floating-point sums depend on their order, and the order on the device, the number of rows and the number of threads.
Here each probability becomes an integer weight first; integer sums are exact in every order, so all that follows
(log-sum-exp, top-p mass, the cumulative distribution) is the same bit for bit alone or among neighbours, on any device
whose elementwise operations are functions of the element. Rows are padded to whole vectors, so no row has a ragged end
that another code path would compute.

The weights know nothing of sampling parameters or of sequences.
"""

from __future__ import annotations

import torch

LANES = 128
_ROWS_IN_CACHE = 4
SCALE = 2.0**44
"""Weight of a row's maximum. 2**18 tokens of full weight still fit 63 bits; 2**-44 is far below fp32's own error."""


def padded(logits: torch.Tensor) -> torch.Tensor:
    """The rows, contiguous and filled with -inf to a multiple of LANES. No copy where they are so already."""
    ragged = -logits.shape[-1] % LANES
    if ragged:
        return torch.nn.functional.pad(logits, (0, ragged), value=float("-inf"))
    return logits.contiguous()


def argmax(rows: torch.Tensor) -> torch.Tensor:
    """Index of each padded row's maximum, the lowest among equals.

    In two stages, because torch's reduction with indices does not use vector instructions on CPU and amax does.
    """
    count, width = rows.shape
    groups = rows.view(count, width // LANES, LANES)
    best = groups.amax(-1).argmax(-1)
    inside = groups[torch.arange(count, device=rows.device), best].argmax(-1)
    return best * LANES + inside


def relative(rows: torch.Tensor, maximum: torch.Tensor, temperature: torch.Tensor | None = None) -> torch.Tensor:
    """Probability of each token relative to its row's most likely one: in [0, 1], 1 at the maximum."""
    below = rows - maximum
    if temperature is not None:
        below /= temperature
    return below.exp_()


def integer(probabilities: torch.Tensor) -> torch.Tensor:
    """The weights: relative probabilities in units of 2**-44, as int64."""
    return (probabilities * SCALE).long()


def group_size(rows: torch.Tensor) -> int:
    """How many rows to take at a time: all, but on a CPU so few that what is made of them stays in a core's cache."""
    return _ROWS_IN_CACHE if rows.device.type == "cpu" else max(1, len(rows))
