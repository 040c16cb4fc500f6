"""The greatest values of each row, in one order for everybody: greater first, the lower index first among equals.

torch's topk leaves open which of equal values it takes, so value and index are packed into one integer. And a row is
looked at in two stages: the best `count` elements lie in the best `count` groups, where a group ranks by its maximum
and then by its place. (Were an element's group not among them, each of those would hold an element ranking before it.)
"""

from __future__ import annotations

import torch

_INDEX_BITS = 32
_INDEX_MASK = (1 << _INDEX_BITS) - 1


def best(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Indices of the `count` greatest of each padded row, best first: [rows, count]."""
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
    bits = (values + 0.0).view(torch.int32)  # +0.0: the two zeros are equal
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
    packed = (ordered << _INDEX_BITS) | (_INDEX_MASK - indices)
    return _INDEX_MASK - (packed.topk(count).values & _INDEX_MASK)
