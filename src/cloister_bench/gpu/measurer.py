"""Measures cases in a forked process (`run.Session`): the GPU is opened here, and weights are made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import partial
from statistics import median
from time import perf_counter

from cloister.levels import PARTITIONED
from cloister_bench.gpu.model import DEFAULT_PROCESSES, for_transformers, random_decoder
from cloister_bench.gpu.plan import Case
from cloister_bench.suite.documents import Row

RUNS = 2
NO_MPS = "NVIDIA's MPS is not there"


def measure_generate(case: Case) -> Iterator[Row]:
    """transformers' `generate` with a static cache: random weights, greedy, all prompts at once, prefill included."""
    import torch
    from transformers import LlamaForCausalLM

    users, answer = case.users, case.answer
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(for_transformers()).eval()
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
    row: Row = {"design": "transformers, compiled" if case.compiled else "transformers", "answer": answer}
    row |= {"seconds": seconds, "tokens_per_s": users * answer / seconds, "ttft_ms": 1e3 * generate(1)}
    yield {"part": case.part, **case.labels(), **row}


class Measurer:
    def __init__(self, *, partitions: bool) -> None:
        from cloister_bench.gpu.attention import AttentionProcesses

        gc.disable()  # a recorded graph that is freed while another is recorded spoils that: `measure` collects
        self._processes = AttentionProcesses([1, DEFAULT_PROCESSES] if partitions else [])  # before the GPU is open
        self._decoder = random_decoder()
        self._refusal = self._decoder.device.partition_refusal(self._decoder) if partitions else NO_MPS

    def measure(self, case: Case) -> Iterator[Row]:
        gc.collect()
        for row in self._rows(case):
            yield {"part": case.part, **case.labels(), **row}

    def _rows(self, case: Case) -> Iterator[Row]:
        import torch

        from cloister_bench.gpu.attention import partitioned
        from cloister_bench.gpu.requests import measure_requests
        from cloister_bench.gpu.steps import bandwidth, measure_steps
        from cloister_bench.gpu.variants import measure_variants

        settings = [] if self._refusal else case.settings()
        given = (self._decoder, self._processes)
        if self._refusal and case.part != "floor":
            yield {"part": "not offered", "what": PARTITIONED, "reason": self._refusal}
        if case.part == "floor":
            yield {"bytes_per_second": bandwidth(), "gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
        elif case.part == "steps":
            yield from measure_steps(*given, case.users, case.prompt, settings)
        elif case.part == "requests":
            behind = partial(partitioned, self._processes, self._decoder)
            yield from measure_requests(self._decoder, behind, case.users, case.prompt, case.answer, settings)
        elif settings:
            yield from measure_variants(*given, settings[0], case.users, case.prompt, case.lambdas)
        torch.cuda.empty_cache()
