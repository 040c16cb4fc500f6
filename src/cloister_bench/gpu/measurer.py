"""Measures the cases of a shape in a forked process (`run.Session`): the GPU is opened here, and weights are made."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator
from functools import partial
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from cloister.levels import PARTITIONED
from cloister_bench.gpu.mps import pipe_folder
from cloister_bench.gpu.plan import DEFAULT_PROCESSES, MOST_CLIENTS, MOST_ISOLATED, PER_USER, Case, Plan
from cloister_bench.gpu.run import Measure
from cloister_bench.gpu.shapes import SHAPES
from cloister_bench.suite.documents import Row

if TYPE_CHECKING:
    from cloister.models.fused import FusedDecoder

MAX_CONTEXT = 4096
RUNS = 2
NOT_LLAMA = ("model_type", "sliding_window")
NO_MPS = "NVIDIA's MPS is not there"
TOO_MANY = f"MPS has {MOST_CLIENTS} clients at most"


def measurer(case: Case, plan: Plan, *, partitions: bool) -> Callable[[], Measure]:
    if case.part == "transformers":  # another program
        return lambda: _peer
    settings = {count for each in plan.cases() if each.shape == case.shape for count in each.settings()}
    return lambda: _Shape(case.shape, settings if partitions else set()).measure


def _peer(case: Case) -> Iterator[Row]:
    """transformers' `generate` with a static cache: random weights, greedy, all prompts at once, prefill included."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    users, answer = case.users, case.answer
    config = asdict(SHAPES[case.shape])
    shape = LlamaConfig(**{name: value for name, value in config.items() if name not in NOT_LLAMA})
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(shape).eval()
    prompts = torch.randint(1000, 20000, (users, case.prompt), device="cuda")

    def generate(tokens: int) -> float:
        torch.cuda.synchronize()
        begun = perf_counter()
        with torch.inference_mode():
            model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                min_new_tokens=tokens,
                max_new_tokens=tokens,
                do_sample=False,
                cache_implementation="static",
                disable_compile=not case.compiled,
                pad_token_id=0,
            )
        torch.cuda.synchronize()
        return perf_counter() - begun

    generate(answer)
    seconds = median(generate(answer) for _ in range(RUNS))
    first = generate(1)
    row: Row = {"design": "transformers, compiled" if case.compiled else "transformers", "answer": answer}
    row |= {"seconds": seconds, "tokens_per_s": users * answer / seconds, "ttft_ms": 1e3 * first}
    yield {"part": case.part, **case.labels(), **row}


def random_decoder(shape: str) -> FusedDecoder:
    """Opens the GPU; the same weights in every process."""
    import torch

    from cloister.compute.gpu.device import GpuDevice
    from cloister.models.decoder import RawParts
    from cloister.models.fused import FusedDecoder
    from cloister_bench.gpu.weights import RandomWeights

    config, device = SHAPES[shape], GpuDevice()
    if folder := pipe_folder():
        device.share(folder, DEFAULT_PROCESSES)
    device.open()
    torch.manual_seed(5)
    return FusedDecoder(config, RawParts(RandomWeights(config), device.kernels), device, MAX_CONTEXT)


class _Shape:
    def __init__(self, shape: str, settings: Collection[int]) -> None:
        from cloister_bench.gpu.attention import AttentionProcesses

        gc.disable()  # a recorded graph that is freed while another is recorded spoils that: `measure` collects
        self._processes = AttentionProcesses(settings)  # before the GPU is open
        self._decoder = random_decoder(shape)
        self._refusal = self._decoder.device.partition_refusal(self._decoder) if settings else NO_MPS

    def measure(self, case: Case) -> Iterator[Row]:
        gc.collect()
        for row in self._rows(case):
            yield {"part": case.part, **case.labels(), **row}

    def _rows(self, case: Case) -> Iterator[Row]:
        import torch

        settings = case.settings() if not self._refusal else []
        given = (self._decoder, self._processes, case.users, case.prompt)
        if case.processes and self._refusal:
            yield {"part": "not offered", "what": PARTITIONED, "reason": self._refusal}
        elif PER_USER in case.processes and case.users >= MOST_CLIENTS:
            yield {"part": "not offered", "what": "a process for each user", "reason": TOO_MANY}
        if case.part == "floor":
            from cloister_bench.gpu.steps import bandwidth

            yield {"bytes_per_second": bandwidth(), "gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
        elif case.part == "steps":
            from cloister_bench.gpu.steps import measure_steps

            isolated = case.prompt == 64 and case.users <= MOST_ISOLATED and PER_USER not in case.processes
            yield from measure_steps(*given, settings, isolated=isolated)
        elif case.part == "requests":
            from cloister_bench.gpu.attention import partitioned
            from cloister_bench.gpu.requests import measure_requests

            behind = partial(partitioned, self._processes, self._decoder)
            yield from measure_requests(self._decoder, behind, case.users, case.prompt, case.answer, settings)
        elif case.part == "breakdown":
            from cloister_bench.gpu.breakdown import measure_breakdown

            yield from measure_breakdown(*given, settings)
        elif settings:
            from cloister_bench.gpu.steps import measure_variants

            yield from measure_variants(*given[:2], settings[0], case.users, case.prompt, case.lambdas)
        torch.cuda.empty_cache()
