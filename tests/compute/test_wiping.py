"""What a sequence leaves in a runner's memory when its blocks are freed: nothing."""

from __future__ import annotations

import torch

from cloister.compute.cpu.native import NativeKernels
from cloister.compute.host_cache import HostCache
from cloister.config import EngineSettings
from cloister.engine.engine import Engine
from cloister.engine.runner import ModelRunner
from cloister.messages.generation import SamplingParams, Submit
from tests.models.architectures import CONFIGS, random_decoder


def held(kernels: NativeKernels, cache: HostCache) -> bool:
    """Whether anything but zeros is in the cache or in the scratch, or a batch is kept."""
    memory: list[torch.Tensor] = [cache._keys, cache._values, *kernels._buffers.values()]
    return kernels._prepared is not None or any(bool(piece.view(torch.uint8).any()) for piece in memory)


def test_an_ended_sequence_leaves_neither_keys_nor_scratch() -> None:
    """One that runs to its end, and one that is cancelled in the middle."""
    kernels = NativeKernels(torch.float32)
    decoder = random_decoder(CONFIGS["llama"], kernels)
    cache = HostCache(decoder.cache_shape, 16, kernels.dtype)
    engine = Engine(ModelRunner(decoder, cache), EngineSettings(chunk_tokens=16))
    for number in (1, 2):
        engine.submit(Submit(number, "tenant", tuple(range(3, 43)), SamplingParams(max_tokens=3)))
        engine.step()
        assert held(kernels, cache)
        while number == 1 and engine.has_work:
            engine.step()
        engine.cancel(number)
        assert not held(kernels, cache)
