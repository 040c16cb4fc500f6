"""The runner over a decoder: lays out the step's rows, runs the layers, gives the wanted logits.

It works on every device whose kernels are called step by step. Cache and asker are the device's; a runner without an
asker serves whole prompts alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cloister.compute.base import KVCache, LinkAsker
from cloister.compute.layout import BLOCK_TOKENS, Chunk, Wanted, lay_out
from cloister.engine.runner import Runner
from cloister.errors import SetupError
from cloister.models.decoder import Decoder


def reserve_cache(decoder: Decoder, mib: int) -> KVCache:
    """As many blocks of the decoder's keys and values as so much memory of its device holds."""
    blocks = mib * 2**20 // decoder.cache_shape.block_bytes(decoder.kernels.dtype)
    if blocks < 1:
        raise SetupError(
            f"{mib} MiB of KV cache hold not one block of this model.", hint="Give more with --kv-cache-mib."
        )
    return decoder.device.cache(decoder.cache_shape, blocks)


class ModelRunner(Runner):
    """Runs a decoder over chunks of sequences."""

    block_tokens = BLOCK_TOKENS

    def __init__(self, decoder: Decoder, cache: KVCache, asker: LinkAsker | None = None) -> None:
        self._decoder, self._cache, self._asker = decoder, cache, asker
        self.vocabulary = decoder.vocabulary
        self.max_context = decoder.max_context
        self.draw_rows = decoder.kernels.draw_rows
        self.relative = decoder.relative
        self.layers, self.heads, self.dim = decoder.cache_shape.layers, decoder.heads, decoder.cache_shape.dim
        self.num_blocks = cache.blocks
        if asker is not None:
            self.link_rows = asker.capacity

    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Each row is computed by itself, so the logits of a chunk do not depend on its neighbours."""
        batch = lay_out(chunks, self._decoder.queries_per_kv_head)
        hidden = self._decoder.hidden(batch, self._cache, self._asker)
        return self._decoder.logits(hidden[_wanted_rows(chunks)])

    def attach(self, link: int, question: int, answer: int) -> None:
        if self._asker is None:
            return super().attach(link, question, answer)
        self._asker.attach(link, question, answer)

    def detach(self, link: int) -> None:
        if self._asker is None:
            return super().detach(link)
        self._asker.detach(link)

    def broken_links(self) -> dict[int, str]:
        return {} if self._asker is None else self._asker.broken()

    @property
    def seconds(self) -> dict[str, float]:
        return self._decoder.kernels.seconds


def _wanted_rows(chunks: Sequence[Chunk]) -> torch.Tensor:
    rows: list[int] = []
    end = 0
    for chunk in chunks:
        start, end = end, end + len(chunk.tokens)
        if chunk.wanted is not Wanted.NONE:
            rows.extend(range(start if chunk.wanted is Wanted.ALL else end - 1, end))
    return torch.tensor(rows, dtype=torch.int64)
