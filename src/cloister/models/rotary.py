"""Cosines and sines of all positions, with transformers' own formulas for every scaling that is static.

Only `modeling_rope_utils` is imported: a model's own module takes seconds to import and the fused decoder needs none.
"""

from __future__ import annotations

import torch
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from cloister.compute.layer import Angles
from cloister.errors import ModelUnsupported

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

    def __init__(self, config: PretrainedConfig, dim: int, max_context: int) -> None:
        check_rotary(config)
        kind = config.rope_parameters["rope_type"]
        if kind == "default":
            frequencies, scaling = _default_frequencies(config.rope_parameters["rope_theta"], dim), 1.0
        else:
            frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](config)
        angles = torch.arange(max_context)[:, None].float() * frequencies.float()
        both_halves = torch.cat((angles, angles), dim=-1)
        cosine, sine = both_halves.cos(), both_halves.sin()
        self._cosine, self._sine = cosine * scaling, sine * scaling
        # Rotating further goes on from a position that was scaled already.
        self._rotation_cosine, self._rotation_sine = (cosine, sine) if scaling != 1.0 else (self._cosine, self._sine)

    @property
    def width(self) -> int:
        """How many of a head's dimensions are rotated."""
        return self._cosine.shape[1]

    def at(self, positions: torch.Tensor, rotations: torch.Tensor) -> Angles:
        """The angles of the rows' positions and of the spans' rotations."""
        further = self.rotation(rotations)
        return Angles(self._cosine[positions], self._sine[positions], *further)

    def rotation(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines that carry a rotated vector so many positions further."""
        return self._rotation_cosine[positions], self._rotation_sine[positions]


def _default_frequencies(theta: float, dim: int) -> torch.Tensor:
    return 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float) / dim))
