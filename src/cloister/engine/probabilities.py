"""Softmax in whole numbers, so that a row's sums do not depend on the batch around it; and one order of ranks.

Floating-point sums depend on their order, and the order on the device, the number of rows and the number of threads.
Here each probability becomes an integer weight first; integer sums are exact in every order, so all that follows
(log-sum-exp, top-p mass, the cumulative distribution) is the same bit for bit alone or among neighbours, on any device
whose elementwise operations are functions of the element. Rows are padded to whole vectors, so no row has a ragged end
that another code path would compute.

Ranks have one order for everybody too: greater first, the lower index first among equals.

Nothing here knows sampling parameters or sequences.
"""

from __future__ import annotations

import torch

LANES = 128
_INDEX_BITS = 32
_INDEX_MASK = (1 << _INDEX_BITS) - 1
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


def best(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Indices of the `count` greatest of each padded row, best first: [rows, count].

    A row is looked at in two stages: the best `count` elements lie in the best `count` groups, where a group ranks by
    its maximum and then by its place. (Were an element's group not among them, each of those would hold an element
    ranking before it.)
    """
    height, width = rows.shape
    group = 64 if count <= 32 else 16
    if 4 * count * group > width:
        return _best_of(rows, torch.arange(width, device=rows.device), count)
    maxima = rows.view(height, width // group, group).amax(-1)
    groups = _best_of(maxima, torch.arange(width // group, device=rows.device), count)
    inside = torch.arange(group, device=rows.device)
    indices = (groups.unsqueeze(-1) * group + inside).flatten(1)
    return _best_of(rows.gather(1, indices), indices, count)


def _best_of(values: torch.Tensor, indices: torch.Tensor, count: int) -> torch.Tensor:
    # torch's topk leaves open which of equal values it takes, so value and index are packed into one integer.
    bits = (values + 0.0).view(torch.int32)  # +0.0: the two zeros are equal
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
    packed = (ordered << _INDEX_BITS) | (_INDEX_MASK - indices)
    return _INDEX_MASK - (packed.topk(count).values & _INDEX_MASK)


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
