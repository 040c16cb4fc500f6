"""Weights that are packed and sealed once for all tests of a process: to start a packer takes seconds."""

from __future__ import annotations

import os

from cloister.config import EngineSettings
from cloister.controller.forkserver import seal_weights
from cloister.models.source import ModelFolder

_SEALED: dict[tuple[str, ...], int] = {}


async def sealed_once(folder: ModelFolder, settings: EngineSettings) -> int:
    """As `seal_weights`: a descriptor that the caller closes. What fails is tried again."""
    asked = (str(folder.path), settings.kernels, settings.dtype, settings.weights)
    if asked not in _SEALED:
        _SEALED[asked] = await seal_weights(folder, settings)
    return os.dup(_SEALED[asked])
