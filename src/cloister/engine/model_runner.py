"""The runner over a decoder: lays out the step's rows, runs the layers, gives the wanted logits.

The KV cache's storage is made here, once, from the memory the settings allow. Links are the asker's, which the kernels
ask through; a runner without one serves whole prompts alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cloister.config import EngineSettings
from cloister.engine.runner import Piece, Runner, Wanted
from cloister.errors import SetupError
from cloister.kernels.batch import BLOCK_TOKENS, Run, lay_out
from cloister.kernels.cache import KVCache
from cloister.link.asking import Asker
from cloister.models.decoder import Decoder


class ModelRunner(Runner):
    """Runs a decoder over pieces of sequences."""

    block_tokens = BLOCK_TOKENS

    def __init__(self, decoder: Decoder, settings: EngineSettings, asker: Asker | None = None) -> None:
        self._decoder = decoder
        self.vocabulary = decoder.vocabulary
        self.max_context = decoder.max_context
        self.draw_rows = decoder.kernels.draw_rows
        self.relative = decoder.relative
        self.layers, self.heads, self.dim = decoder.cache_shape.layers, decoder.heads, decoder.cache_shape.dim
        self._asker = asker
        if asker is not None:
            self.link_rows = asker.shape.capacity
            decoder.kernels.asks = asker
        dtype = decoder.kernels.dtype
        self.num_blocks = settings.kv_cache_mib * 2**20 // decoder.cache_shape.block_bytes(dtype)
        if self.num_blocks < 1:
            raise SetupError(
                f"{settings.kv_cache_mib} MiB of KV cache hold not one block of this model.",
                hint="Give more with --kv-cache-mib.",
            )
        self._cache = KVCache(decoder.cache_shape, self.num_blocks, dtype)

    def forward(self, pieces: Sequence[Piece]) -> torch.Tensor:
        """Each row is computed by itself, so the logits of a piece do not depend on its neighbours."""
        runs = [Run(piece.tokens, piece.start, piece.blocks, piece.layout) for piece in pieces]
        hidden = self._decoder.hidden(lay_out(runs, self._decoder.queries_per_kv_head), self._cache)
        return self._decoder.logits(hidden[_wanted_rows(pieces)])

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


def _wanted_rows(pieces: Sequence[Piece]) -> torch.Tensor:
    rows: list[int] = []
    end = 0
    for piece in pieces:
        start, end = end, end + len(piece.tokens)
        if piece.wanted is not Wanted.NONE:
            rows.extend(range(start if piece.wanted is Wanted.ALL else end - 1, end))
    return torch.tensor(rows, dtype=torch.int64)
