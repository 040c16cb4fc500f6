"""From config.json and parts to a decoder. One that mixes rows is refused: it would tell tenants others' words."""

from collections.abc import Sequence
from typing import Any

import torch

from cloister.compute.base import Device, KVCache
from cloister.compute.layout import Chunk, lay_out
from cloister.models.decoder import Decoder, Parts, refused, refusing
from cloister.models.fused import FusedDecoder
from cloister.models.source import ModelFolder, read_plainly, suits

ONE, OTHER = (3, 1, 4, 1, 5, 9, 2), (2, 7, 1, 8, 2)


def load_decoder(folder: ModelFolder, parts: Parts, device: Device, max_context: int = 0) -> Decoder:
    """As `build_decoder`, checked where this process can compute on the device."""
    decoder = build_decoder(folder, parts, device, max_context)
    if device.survives_fork:
        check_decoder(decoder)
    return decoder


def check_decoder(decoder: Decoder) -> None:
    """Raise ModelUnsupported if rows of a batch mix, or the logits are not the model's own."""
    with refusing(decoder.architecture):
        mixed = mixes_rows(decoder)
    if mixed:
        raise refused(decoder.architecture, "an answer depends on what else is in the batch")
    decoder.check()


def build_decoder(folder: ModelFolder, parts: Parts, device: Device, max_context: int = 0) -> Decoder:
    """`max_context` 0 means what the model allows."""
    config: Any = read_plainly(folder.config)
    if config is None:
        from transformers import AutoConfig

        try:
            config = AutoConfig.from_pretrained(folder.path, trust_remote_code=False)
        except Exception as wrong:  # of whatever type its checks of a configuration raise
            kind = folder.config.get("model_type", "unknown")
            raise refused(str(kind), "transformers does not know it, or not this configuration of it") from wrong
    longest = int(getattr(config, "max_position_embeddings", 0) or 2048)
    context = min(max_context, longest) if max_context else longest
    if suits(config):
        return FusedDecoder(config, parts, device, context)
    from cloister.models.hooked import HookedDecoder  # imports the whole of transformers' modelling: seconds

    return HookedDecoder(config, parts, device, context)


def mixes_rows(decoder: Decoder) -> bool:
    one, other = ([token % decoder.vocabulary for token in tokens] for tokens in (ONE, OTHER))
    cache = decoder.device.cache(decoder.cache_shape, 4)
    expected = [_logits(decoder, cache, [Chunk(tokens, 0, [at])]) for at, tokens in enumerate((one, other))]
    first = _logits(decoder, cache, [Chunk(one[:4], 0, [2]), Chunk(other[:1], 0, [3])])
    second = _logits(decoder, cache, [Chunk(other[1:], 1, [3]), Chunk(one[4:], 4, [2])])
    together = torch.cat((first[:4], second[4:])), torch.cat((first[4:], second[:4]))
    return not all(map(torch.equal, expected, together))


def _logits(decoder: Decoder, cache: KVCache, chunks: Sequence[Chunk]) -> torch.Tensor:
    return decoder.logits(decoder.hidden(lay_out(chunks, decoder.queries_per_kv_head), cache)).clone()
