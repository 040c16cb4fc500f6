"""transformers' `generate` with a static cache: the same shape, random weights in bf16, greedy, all prompts at once."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from time import perf_counter
from typing import Any

import torch
from msgspec.structs import asdict

from cloister.models.plain_config import PlainConfig

RUNS = 2
NOT_LLAMA = ("model_type", "sliding_window")
Row = dict[str, Any]


def measure_generate(config: PlainConfig, users: int, prompt: int, answer: int, *, compiled: bool) -> Iterator[Row]:
    """Whole requests, prefill included. `compiled`: as `generate` does by itself."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(**{name: value for name, value in asdict(config).items() if name not in NOT_LLAMA})
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(shape).eval()
    prompts = torch.randint(1000, 20000, (users, prompt), device="cuda")

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
                disable_compile=not compiled,
                pad_token_id=0,
            )
        torch.cuda.synchronize()
        return perf_counter() - begun

    generate(answer)
    seconds = median(generate(answer) for _ in range(RUNS))
    first = generate(1)
    row = {"design": "transformers, compiled" if compiled else "transformers", "answer": answer, "seconds": seconds}
    yield {**row, "tokens_per_s": users * answer / seconds, "ttft_ms": 1e3 * first}
