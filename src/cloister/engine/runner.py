"""A runner computes one forward pass over chunks. It handles no requests, tenants or sampling."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch

from cloister.compute.base import KVCache, LinkAsker
from cloister.compute.layer import DrawRows, MaskRow
from cloister.compute.layout import BLOCK_TOKENS, Chunk, Wanted, lay_out
from cloister.errors import SetupError
from cloister.models.decoder import Decoder


class Runner(ABC):
    """Each row's result is bit for bit independent of the other rows and chunks. `forward` writes to the cache."""

    vocabulary: int
    max_context: int
    block_tokens: int
    num_blocks: int
    width: int = 0  # of `states`; 0: it has none
    # only distances of positions matter, so that an answer may be rotated from 0 on (compute.layout)
    relative: bool = False
    draw_rows: DrawRows | None = None  # the kernels' function that draws a token from each row of logits
    mask_row: MaskRow | None = None
    asker: LinkAsker | None = None  # queries the vaults; without it only whole prompts are served
    cache: KVCache | None = None

    @abstractmethod
    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor: ...

    def states(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """As `forward`, with the final norm's output in place of logits. No chunk asks a vault."""
        raise NotImplementedError

    @abstractmethod
    def wipe(self, blocks: Sequence[int]) -> None: ...

    @property
    def seconds(self) -> dict[str, float]:
        return {}


def reserve_cache(decoder: Decoder, mib: int) -> KVCache:
    return decoder.device.cache(decoder.cache_shape, blocks_within(decoder, mib))


def blocks_within(decoder: Decoder, mib: int) -> int:
    blocks = mib * 2**20 // decoder.cache_shape.block_bytes(decoder.kernels.dtype)
    if blocks < 1:
        raise SetupError(
            f"{mib} MiB of KV cache hold not one block of this model.", hint="Give more with --kv-cache-mib."
        )
    return blocks


class ModelRunner(Runner):
    block_tokens = BLOCK_TOKENS

    cache: KVCache

    def __init__(self, decoder: Decoder, cache: KVCache, asker: LinkAsker | None = None) -> None:
        self._decoder, self.cache, self.asker = decoder, cache, asker
        self.vocabulary, self.width = decoder.vocabulary, decoder.width
        self.max_context = decoder.max_context
        self.draw_rows, self.mask_row = decoder.kernels.draw_rows, decoder.kernels.mask_row
        self.relative = decoder.relative
        self.num_blocks = cache.blocks

    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        return self._passed(chunks, self._decoder.logits)

    def states(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        return self._passed(chunks, self._decoder.normed)

    def _passed(self, chunks: Sequence[Chunk], wanted: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        with lay_out(chunks, self._decoder.queries_per_kv_head) as batch:
            hidden = self._decoder.hidden(batch, self.cache, self.asker)
        found = wanted(hidden[wanted_rows(chunks)])
        with torch.inference_mode():  # where some decoders made it: torch changes it nowhere else
            hidden.zero_()  # of all rows, also those of a prompt
        return found

    def wipe(self, blocks: Sequence[int]) -> None:
        self.cache.wipe(blocks)
        self._decoder.kernels.forget()

    @property
    def seconds(self) -> dict[str, float]:
        return self._decoder.kernels.seconds


def wanted_rows(chunks: Sequence[Chunk]) -> torch.Tensor:
    rows: list[int] = []
    end = 0
    for chunk in chunks:
        start, end = end, end + len(chunk.tokens)
        if chunk.wanted is not Wanted.NONE:
            rows.extend(range(start if chunk.wanted is Wanted.ALL else end - 1, end))
    return torch.tensor(rows, dtype=torch.int64)
