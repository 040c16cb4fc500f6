"""A process in which sequences have ended: `python -m tests.redteam.ended SECRETS`, until its input ends.

Each scenario has a prompt whose secret tokens come masked, so that this process has them nowhere but where the engine
puts them. It says "ended" once all scenarios have. `kept` is a tensor that was freed and not overwritten: the control.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable

import torch

from cloister.compute.base import KVCache
from cloister.compute.cpu.native import CpuDevice, NativeKernels
from cloister.compute.host_cache import HostCache
from cloister.compute.layout import Batch
from cloister.config import EngineSettings
from cloister.engine.base import EngineRequest
from cloister.engine.graph_runner import GraphRunner
from cloister.engine.paged import PagedEngine
from cloister.engine.runner import ModelRunner, Runner, reserve_cache
from cloister.messages.generation import Failed
from cloister.messages.types import SamplingParams
from tests.models.architectures import CONFIGS, random_decoder

MASK = 0x5A5
VOCABULARY = 3001
SECRET = 8
BEFORE, AFTER = 24, 8
SHORT = EngineSettings(chunk_tokens=48)
"""A prompt comes in one chunk. The runner that records takes it for one row each."""

WAYS = {
    "plain": SamplingParams(max_tokens=3, temperature=0.0),
    "drawn": SamplingParams(max_tokens=3, top_p=0.9, top_k=3, min_p=0.01),
    "scored": SamplingParams(max_tokens=3, prompt_logprobs=3, logprobs=3),
    "penalised": SamplingParams(max_tokens=3, repetition_penalty=1.3, presence_penalty=0.5),
    "cancelled": SamplingParams(max_tokens=100, repetition_penalty=1.3, temperature=0.0),
    "last": SamplingParams(max_tokens=1, temperature=0.0),
    "embedded": SamplingParams(max_tokens=0, embed=True),
}


class Trusting(NativeKernels):
    """Of a recorded batch's tables only the parts in use are filled; these kernels check all of them."""

    def _prepare(self, batch: Batch, cache: KVCache, rows: int, dim: int) -> HostCache:
        batch.tables.clamp_(0, cache.blocks - 1)
        return super()._prepare(batch, cache, rows, dim)


class Repeating(CpuDevice):
    """Repeats a step by computing it."""

    def record(self, run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        return run


def _runner(architecture: str, kind: type[ModelRunner] = ModelRunner) -> Runner:
    config = copy.deepcopy(CONFIGS[architecture])
    config.vocab_size = VOCABULARY
    kernels = Trusting(torch.float32, 1)
    decoder = random_decoder(config, kernels)
    decoder.device = Repeating(kernels)
    return kind(decoder, reserve_cache(decoder, 2))


RUNNERS: dict[str, Callable[[], Runner]] = {
    "fused": lambda: _runner("llama"),
    "gemma3": lambda: _runner("gemma3"),
    "phi": lambda: _runner("phi"),
    "recorded": lambda: _runner("llama", GraphRunner),
}
SCENARIOS = [f"{runner}, {way}" for runner in RUNNERS for way in WAYS]
KEPT = "kept"


def unmasked(tokens: list[int]) -> list[int]:
    return [token ^ MASK for token in tokens]


def play(engine: PagedEngine, number: int, masked: list[int], params: SamplingParams) -> None:
    """One request, to its end or for two steps."""
    filling = [1 + place for place in range(BEFORE + AFTER)]
    prompt = (*filling[:BEFORE], *unmasked(masked), *filling[BEFORE:])
    engine.submit(EngineRequest(number, "tenant", prompt, params))
    for _ in range(max(params.max_tokens, 1) if params.max_tokens < 100 else 2):
        assert not any(isinstance(message, Failed) for message in engine.step())
    engine.cancel(number)
    assert not engine.has_work


def main(secrets: dict[str, list[int]]) -> None:
    for name, make in RUNNERS.items():
        engine = PagedEngine(make(), SHORT)
        for number, (way, params) in enumerate(WAYS.items()):
            play(engine, number, secrets[f"{name}, {way}"], params)
    torch.tensor([0, 0, *unmasked(secrets[KEPT]), 0, 0])  # an allocator may write to the ends of what is free
    print("ended", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
