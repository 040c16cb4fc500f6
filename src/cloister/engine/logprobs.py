"""Log-probabilities as reported: log-softmax of the model's own logits, before penalties, bias, temperature or filters.

Decoded tokens and tokens of a forced pass go through the same function, and its sums are integers (see weights.py):
a replay gives the bits that decoding gave.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from cloister.engine.probabilities import SCALE, best, group_size, integer, relative
from cloister.messages.generation import TokenLogprob


def measure(rows: torch.Tensor, at: torch.Tensor, chosen: torch.Tensor, count: int) -> torch.Tensor:
    """What `report` needs of each of the padded rows `at`, on the device, as float64: [len(at), 3 + 2·count].

    Columns: the chosen token's logit, the maximum, the sum of weights, then ids and logits of the `count` best.
    """
    size = group_size(rows)
    groups = [slice(first, first + size) for first in range(0, len(at), size)]
    return torch.cat([_measure(rows[at[group]], chosen[group], count) for group in groups])


def _measure(rows: torch.Tensor, chosen: torch.Tensor, count: int) -> torch.Tensor:
    maximum = rows.amax(-1, keepdim=True)
    total = integer(relative(rows, maximum)).sum(-1, keepdim=True)
    columns = [rows.gather(1, chosen.unsqueeze(-1)), maximum, total]
    if count:
        ids = best(rows, count)
        columns += [ids, rows.gather(1, ids)]
    return torch.cat([column.double() for column in columns], dim=-1)


def report(measured: Sequence[float], count: int) -> TokenLogprob:
    """The message for one row of `measure`, with its `count` best alternatives."""
    chosen, maximum, total = measured[:3]
    log_total = math.log(total / SCALE) if total > 0 else math.nan  # only where the logits were NaN themselves
    widest = (len(measured) - 3) // 2
    ids, logits = measured[3 : 3 + count], measured[3 + widest : 3 + widest + count]
    return TokenLogprob(
        logprob=chosen - maximum - log_total,
        top=tuple((int(token), logit - maximum - log_total) for token, logit in zip(ids, logits, strict=True)),
    )
