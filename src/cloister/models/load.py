"""From a model's config.json and its parts to a decoder: the fused one for the Llama family, else the hooked one."""

from __future__ import annotations

from typing import Any

from cloister.compute.base import Device
from cloister.errors import ModelUnsupported
from cloister.models import fused
from cloister.models.decoder import Decoder, Parts
from cloister.models.fused import FusedDecoder
from cloister.models.plain_config import read_plainly
from cloister.models.source import ModelFolder


def load_decoder(folder: ModelFolder, parts: Parts, device: Device, max_context: int = 0) -> Decoder:
    """The folder's model on this device; `max_context` 0 means what the model allows."""
    config: Any = read_plainly(folder.config) or _read_by_transformers(folder)
    longest = int(getattr(config, "max_position_embeddings", 0) or 2048)
    context = min(max_context, longest) if max_context else longest
    if fused.suits(config):
        return FusedDecoder(config, parts, device, context)
    from cloister.models.hooked import HookedDecoder  # imports the whole of transformers' modelling: seconds

    return HookedDecoder(config, parts, device, context)


def _read_by_transformers(folder: ModelFolder) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder.path, trust_remote_code=False)
    except (ValueError, KeyError, OSError) as wrong:
        kind = folder.config.get("model_type", "unknown")
        raise ModelUnsupported(f"transformers does not know the architecture '{kind}'.") from wrong
