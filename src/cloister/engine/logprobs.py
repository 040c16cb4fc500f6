"""Log-probabilities as reported: log-softmax of the model's own logits, before penalties, bias, temperature or filters.

Decoded tokens and tokens of a forced pass go through the same function, and its sums are integers (see weights.py):
a replay gives the bits that decoding gave.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from cloister.engine.weights import SCALE, integer, relative
from cloister.messages.generation import TokenLogprob

_ID_BITS = 32
_ID_MASK = (1 << _ID_BITS) - 1


def measure(rows: torch.Tensor, chosen: torch.Tensor, count: int) -> torch.Tensor:
    """What `report` needs of each padded row, on the device, as float64: [rows, 3 + 2·count].

    Columns: the chosen token's logit, the maximum, the sum of weights, then ids and logits of the `count` best.
    """
    maximum = rows.amax(-1, keepdim=True)
    total = integer(relative(rows, maximum)).sum(-1, keepdim=True)
    columns = [rows.gather(1, chosen.unsqueeze(-1)), maximum, total]
    if count:
        best = _best(rows, count)
        columns += [best, rows.gather(1, best)]
    return torch.cat([column.double() for column in columns], dim=-1)


def report(measured: Sequence[float], count: int) -> TokenLogprob:
    """The message for one row of `measure`, with its `count` best alternatives."""
    chosen, maximum, total = measured[:3]
    log_total = math.log(total / SCALE) if total > 0 else math.nan  # only where the logits were NaN themselves
    widest = (len(measured) - 3) // 2
    best = zip(measured[3 : 3 + count], measured[3 + widest : 3 + widest + count], strict=True)
    return TokenLogprob(
        logprob=chosen - maximum - log_total,
        top=tuple((int(token), logit - maximum - log_total) for token, logit in best),
    )


def _best(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Ids of the `count` greatest logits, best first, the lower id first among equals.

    Logit and id are packed in one integer, because topk leaves open which of equal floats it takes.
    """
    bits = (rows + 0.0).view(torch.int32)  # +0.0: the two zeros are equal
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
    from_last = _ID_MASK - torch.arange(rows.shape[-1], device=rows.device)
    packed = (ordered << _ID_BITS) | from_last
    return _ID_MASK - (packed.topk(count).values & _ID_MASK)
