"""Token ids in a tensor, without a copy left behind.
torch's wheels for ARM allocate tensors by mimalloc, which no tunable of glibc's reaches (process/hardening.py). So the
code that makes a tensor of token ids overwrites it. `torch.tensor` and numpy make copies on the way, which would stay.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch


def token_tensor(tokens: Sequence[int], device: torch.device | None = None, *, room: int = 0) -> torch.Tensor:
    """int64, with zeros behind where there is `room` for more. The caller overwrites it."""
    memory = torch.zeros(max(len(tokens), room), dtype=torch.int64)
    struct.pack_into(f"={len(tokens)}q", memory.numpy().data, 0, *tokens)
    if device is None or device.type == "cpu":
        return memory
    placed = memory.to(device)
    memory.zero_()
    return placed
