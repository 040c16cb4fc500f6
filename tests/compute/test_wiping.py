"""What a sequence leaves in memory when its blocks are freed: nothing. What an unused cache takes: nothing."""

from __future__ import annotations

import mmap

import psutil
import torch

from cloister.compute.cpu.native import NativeKernels
from cloister.compute.host_cache import HostCache
from cloister.config import EngineSettings
from cloister.engine.base import EngineRequest
from cloister.engine.paged import PagedEngine
from cloister.engine.runner import ModelRunner
from cloister.messages.types import SamplingParams
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
    engine = PagedEngine(ModelRunner(decoder, cache), EngineSettings(chunk_tokens=16))
    for number in (1, 2):
        engine.submit(EngineRequest(number, "tenant", tuple(range(3, 43)), SamplingParams(max_tokens=3)))
        engine.step()
        assert held(kernels, cache)
        while number == 1 and engine.has_work:
            engine.step()
        engine.cancel(number)
        assert not held(kernels, cache)


def test_a_cache_takes_memory_only_when_it_is_written() -> None:
    """Its pages are the kernel's: an allocator that wipes what it frees would write to all it gives out."""
    kernels = NativeKernels(torch.float32)
    shape = random_decoder(CONFIGS["llama"], kernels).cache_shape
    before = psutil.Process().memory_full_info().uss
    cache = HostCache(shape, (1 << 28) // (2 * 4 * shape.layers * shape.kv_heads * shape.dim * 16), kernels.dtype)
    assert cache._keys.data_ptr() % mmap.PAGESIZE == cache._values.data_ptr() % mmap.PAGESIZE == 0
    assert psutil.Process().memory_full_info().uss - before < 1 << 24
    assert not kernels._buffers


def test_scratch_that_is_dropped_is_gone_and_comes_back() -> None:
    kernels = NativeKernels(torch.float32)
    decoder = random_decoder(CONFIGS["llama"], kernels)
    engine = PagedEngine(
        ModelRunner(decoder, HostCache(decoder.cache_shape, 16, kernels.dtype)), EngineSettings(chunk_tokens=16)
    )
    engine.submit(EngineRequest(1, "tenant", tuple(range(3, 43)), SamplingParams(max_tokens=3)))
    engine.step()
    assert kernels._buffers
    kernels.drop_scratch()
    assert not kernels._buffers and kernels._prepared is None
    while engine.has_work:
        engine.step()
