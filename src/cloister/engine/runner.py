"""What the engine asks of whatever computes the model: one forward pass over pieces of sequences.

A runner knows weights, kernels and the storage of the KV cache. It knows nothing of requests, tenants or sampling.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import torch

from cloister.kernels.base import DrawRows


class Wanted(Enum):
    """The rows of a piece whose logits are wanted."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


@dataclass(frozen=True, slots=True, repr=False)
class Piece:
    """Consecutive tokens of one sequence, to be computed in one step: a prefill chunk, or one decoded token.

    `blocks` covers positions 0 .. start+len(tokens)-1 in order; positions before `start` are in the cache already.
    """

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    wanted: Wanted


class Runner(ABC):
    """Runs the model over one batch. Each row's result is bit for bit independent of the other rows and pieces."""

    vocabulary: int
    max_context: int
    block_tokens: int
    num_blocks: int
    draw_rows: DrawRows | None = None
    """The kernels' own way to draw a token from each row of logits, where they have one."""

    @abstractmethod
    def forward(self, pieces: Sequence[Piece]) -> torch.Tensor:
        """Write the pieces' keys and values into the cache; return fp32 logits of the wanted rows, in order."""
