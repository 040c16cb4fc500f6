"""What the engine asks of whatever computes the model: one forward pass over chunks of sequences.

A runner knows weights, a device, the storage of the KV cache and the links to vaults. It knows nothing of requests,
tenants or sampling, and `forward` waits for nothing but its own computation and the vaults.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from cloister.compute.layer import DrawRows
from cloister.compute.layout import Chunk
from cloister.errors import SetupError


class Runner(ABC):
    """Runs the model over one batch. Each row's result is bit for bit independent of the other rows and chunks."""

    vocabulary: int
    max_context: int
    block_tokens: int
    num_blocks: int
    layers: int
    heads: int
    dim: int
    relative: bool = False
    """Whether only the distance of positions matters, so that an answer may be rotated from 0 on (compute.layout)."""
    link_rows: int = 128
    """Rows one link carries at a time, at most."""
    draw_rows: DrawRows | None = None
    """The kernels' own way to draw a token from each row of logits, where they have one."""

    @abstractmethod
    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Write the chunks' keys and values into the cache; return fp32 logits of the wanted rows, in order."""

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
        """Time spent so far in each phase of the layers (compute.base.PHASES), where it is measured."""
        return {}
