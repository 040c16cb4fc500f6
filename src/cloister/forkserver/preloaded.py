"""What all children are born with: settings, the decoder on the sealed weights, and the way prompts are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from cloister.compute.choose import choose_device
from cloister.config import EngineSettings
from cloister.errors import ProtocolError
from cloister.messages.generation import VERSION
from cloister.messages.lifecycle import Preload
from cloister.models.decoder import Decoder
from cloister.models.load import load_decoder
from cloister.models.sealed import SealedParts
from cloister.models.source import open_folder
from cloister.prompts.reading import PromptReading
from cloister.prompts.tokenizer import Tokenizer

_ROW_WORTH = 16
"""Floats of scratch a prefilled row takes, in widths of the hidden state: a generous guess for any of our models."""


@dataclass(frozen=True)
class PreloadedModel:
    """Made once in the fork server, used by every child."""

    settings: EngineSettings
    decoder: Decoder
    reading: PromptReading

    @property
    def scratch_bytes(self) -> int:
        """Memory the computation of one chunk takes beyond the KV cache, at most."""
        width = self.decoder.heads * self.decoder.cache_shape.dim
        return self.settings.chunk_tokens * _ROW_WORTH * width * 4


def load_model(preload: Preload, weights: int) -> PreloadedModel:
    """Load everything, without starting a thread."""
    if preload.version != VERSION:
        raise ProtocolError("The fork server was started by a controller of another version.")
    torch.set_num_threads(1)
    settings = EngineSettings.model_validate_json(preload.settings)
    # One thread is the caller's own. A child starts its team after the fork, which threads would not survive.
    device = choose_device(settings.model_copy(update={"threads": 1}))
    folder = open_folder(Path(preload.path), preload.name)
    decoder = load_decoder(folder, SealedParts(weights, device.kernels), device, settings.max_context)
    tokenizer = Tokenizer(folder)
    tokenizer.warm()
    return PreloadedModel(settings, decoder, PromptReading(tokenizer, decoder.vocabulary, decoder.max_context))
