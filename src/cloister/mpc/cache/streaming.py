"""StreamingLLM (Xiao et al., 2023): the first tokens, which serve as sinks of attention, and the last ones."""

from __future__ import annotations

from cloister.mpc.cache.kept import KeptCache


def streaming(prompt_tokens: int, new_tokens: int, read: int, sinks: int) -> KeptCache:
    return KeptCache(prompt_tokens, new_tokens, first=sinks, heavy=0, last=max(read - sinks, 1), name="streaming")
