"""From a model's config.json and its parts to a decoder: the fused one for the Llama family, else the hooked one."""

from __future__ import annotations

from typing import Any

from cloister.compute.base import Device
from cloister.models import fused
from cloister.models.company import mixes_rows
from cloister.models.decoder import Decoder, Parts, refused, refusing
from cloister.models.fused import FusedDecoder
from cloister.models.plain_config import read_plainly
from cloister.models.source import ModelFolder


def load_decoder(folder: ModelFolder, parts: Parts, device: Device, max_context: int = 0) -> Decoder:
    """As `build_decoder`. Where this process can compute on the device, it has shown that it computes right."""
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
    except Exception as wrong:  # of whatever type its checks of a configuration raise
        kind = folder.config.get("model_type", "unknown")
        raise refused(str(kind), "transformers does not know it, or not this configuration of it") from wrong
