"""Reuse over real kernels: what is found gives the same answer to the last bit, from the pool and from the disk."""

from __future__ import annotations

import pytest
import torch

from cloister.compute.cpu.native import NativeKernels
from cloister.compute.host_cache import HostCache
from cloister.config import EngineSettings
from cloister.engine.base import EngineRequest
from cloister.engine.paged import PagedEngine
from cloister.engine.runner import ModelRunner
from cloister.messages.types import SamplingParams
from cloister.prefix.radix import RadixCache
from tests.engine.node import Answer, answers_to
from tests.models.architectures import CONFIGS, random_decoder

STEM = tuple(range(3, 59))
PARAMS = SamplingParams(max_tokens=5, temperature=0.8, seed=4, logprobs=3)


def asked(number: int, prompt: tuple[int, ...], tenant: str, public: int = 0) -> EngineRequest:
    return EngineRequest(number, tenant, prompt, PARAMS, public, policy="partition")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_found_blocks_give_the_same_bits_as_computed_ones(dtype: torch.dtype) -> None:
    kernels = NativeKernels(dtype)
    decoder = random_decoder(CONFIGS["llama"], kernels)
    settings = EngineSettings(chunk_tokens=24)

    def alone(submit: EngineRequest) -> Answer:
        plain = PagedEngine(ModelRunner(decoder, HostCache(decoder.cache_shape, 16, dtype)), settings)
        return answers_to(plain, [submit])[submit.request_id]

    cache = HostCache(decoder.cache_shape, 16, dtype)
    tree = RadixCache()
    engine = PagedEngine(ModelRunner(decoder, cache), settings, tree)
    found = []
    for number, (end, tenant, public) in enumerate(
        [((70, 71), "a", 0), ((70, 72), "a", 0), ((75,), "a", 20), ((76,), "b", 20), ((77,), "a", 20)]
    ):
        submit = asked(number, (*STEM, *end), tenant, public)
        answer = answers_to(engine, [submit])[number]
        assert answer == alone(submit)
        found.append(answer.cached)
    assert found == [0, 48, 16, 0, 52]
    tree.evict(16)
    assert engine._pool.free == 16 and not bool(cache._keys.view(torch.uint8).any()), "all of it is zeroed"
