"""What the engine asks of whatever computes the model: one forward pass over pieces of sequences.

A runner knows weights, kernels, the storage of the KV cache and the links to vaults. It knows nothing of requests,
tenants or sampling.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import torch

from cloister.errors import SetupError
from cloister.kernels.base import DrawRows
from cloister.kernels.batch import WHOLE, Layout


class Wanted(Enum):
    """The rows of a piece whose logits are wanted."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


@dataclass(frozen=True, slots=True, repr=False)
class Piece:
    """Consecutive tokens of one sequence, to be computed in one step: a prefill chunk, or one decoded token.

    `blocks` covers positions 0 .. start+len(tokens)-1 in order, as the layout spreads them over blocks; positions
    before `start` are in the cache already. A piece may span segments.
    """

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    wanted: Wanted
    layout: Layout = WHOLE


class Runner(ABC):
    """Runs the model over one batch. Each row's result is bit for bit independent of the other rows and pieces."""

    vocabulary: int
    max_context: int
    block_tokens: int
    num_blocks: int
    layers: int
    heads: int
    dim: int
    relative: bool = False
    """Whether only the distance of positions matters, so that an answer may be rotated from 0 on (kernels.batch)."""
    link_rows: int = 128
    """Rows one link carries at a time, at most."""
    draw_rows: DrawRows | None = None
    """The kernels' own way to draw a token from each row of logits, where they have one."""

    @abstractmethod
    def forward(self, pieces: Sequence[Piece]) -> torch.Tensor:
        """Write the pieces' keys and values into the cache; return fp32 logits of the wanted rows, in order."""

    def attach(self, link: int, question: int, answer: int) -> None:
        """Map the memory of a link, by its descriptors, which stay the caller's to close."""
        raise SetupError("These kernels cannot ask vaults.", hint="Use the native kernels.")

    def detach(self, link: int) -> None:
        """Forget a link that was attached."""
        raise SetupError("These kernels cannot ask vaults.", hint="Use the native kernels.")

    def broken_links(self) -> dict[int, str]:
        """The links that failed during the last forward, and how: what their rows gave is worth nothing.

        vault_lost, vault_timeout or link_malformed; see errors.VaultLost.
        """
        return {}

    @property
    def seconds(self) -> dict[str, float]:
        """Time spent so far in each phase of the layers (kernels.base.PHASES), where it is measured."""
        return {}
