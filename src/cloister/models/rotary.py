"""Cosines and sines of all positions, from transformers' own rotary module, so that every static scaling is right."""

from __future__ import annotations

import torch
from transformers import PretrainedConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from cloister.errors import ModelUnsupported
from cloister.kernels.base import Angles

LENGTH_DEPENDENT = ("dynamic", "longrope")


def check_rotary(config: PretrainedConfig) -> None:
    """Refuse scalings whose angles depend on the longest neighbour in the batch: they would leave a trace."""
    parameters = getattr(config, "rope_parameters", None) or {}
    kinds = [parameters] if "rope_type" in parameters else [p for p in parameters.values() if isinstance(p, dict)]
    for kind in kinds:
        if kind.get("rope_type") in LENGTH_DEPENDENT:
            raise ModelUnsupported(
                f"Rotary scaling '{kind['rope_type']}' depends on other requests' lengths and is not served.",
                hint="Choose a model with default, linear, yarn or llama3 scaling.",
            )


class Rotary:
    """A table of angles for positions 0 .. max_context-1."""

    def __init__(self, config: PretrainedConfig, max_context: int) -> None:
        check_rotary(config)
        module = LlamaRotaryEmbedding(config)
        cosine, sine = module(torch.zeros(1, dtype=torch.float32), torch.arange(max_context)[None])
        self._cosine, self._sine = cosine[0].contiguous(), sine[0].contiguous()

    @property
    def width(self) -> int:
        """How many of a head's dimensions turn."""
        return self._cosine.shape[1]

    def at(self, positions: torch.Tensor) -> Angles:
        """The angles of these positions, one row each."""
        return Angles(self._cosine[positions], self._sine[positions])
