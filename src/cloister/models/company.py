"""Two sequences through a decoder, alone and together: their logits must be the same bits.

A model that mixes the rows of a batch tells one tenant what another wrote. So no decoder serves before it has shown
that it does not: with prompts in one piece and in two, first and last in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cloister.compute.base import KVCache
from cloister.compute.layout import Chunk, lay_out
from cloister.models.decoder import Decoder

ONE, OTHER = (3, 1, 4, 1, 5, 9, 2), (2, 7, 1, 8, 2)


def mixes_rows(decoder: Decoder) -> bool:
    """Whether a sequence's logits depend on another sequence in the batch."""
    one, other = ([token % decoder.vocabulary for token in tokens] for tokens in (ONE, OTHER))
    cache = decoder.device.cache(decoder.cache_shape, 4)
    expected = [_logits(decoder, cache, [Chunk(tokens, 0, [at])]) for at, tokens in enumerate((one, other))]
    first = _logits(decoder, cache, [Chunk(one[:4], 0, [2]), Chunk(other[:1], 0, [3])])
    second = _logits(decoder, cache, [Chunk(other[1:], 1, [3]), Chunk(one[4:], 4, [2])])
    together = torch.cat((first[:4], second[4:])), torch.cat((first[4:], second[:4]))
    return not all(map(torch.equal, expected, together))


def _logits(decoder: Decoder, cache: KVCache, chunks: Sequence[Chunk]) -> torch.Tensor:
    return decoder.logits(decoder.hidden(lay_out(chunks, decoder.queries_per_kv_head), cache)).clone()
