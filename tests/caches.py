"""What a block of the cache holds, for tests that compare or look for rests."""

from __future__ import annotations

import torch

from cloister.compute.base import KVCache
from cloister.compute.host_cache import on_host


def bytes_of(cache: KVCache, block: int) -> bytes:
    held = on_host(cache)
    return b"".join(part[block].view(torch.uint8).numpy().tobytes() for part in (held._keys, held._values))
