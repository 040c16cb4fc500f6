"""Throughput of transformers' generate on one batch: FOLDER INPUT_TOKENS OUTPUT_TOKENS USERS… → JSON {users: tokens/s}.

A peer without a server: every prompt is there at once and each batch is timed as a whole, after one warm-up.
"""

from __future__ import annotations

import json
import sys
from time import perf_counter

import torch
from transformers import AutoModelForCausalLM


def main(folder: str, input_tokens: int, output_tokens: int, users: list[int]) -> dict[int, float]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    throughput: dict[int, float] = {}
    with torch.inference_mode():
        for count in users:
            for _ in range(2):
                prompts = torch.randint(1000, min(20000, model.config.vocab_size), (count, input_tokens))
                begun = perf_counter()
                model.generate(
                    prompts,
                    attention_mask=torch.ones_like(prompts),
                    min_new_tokens=output_tokens,
                    max_new_tokens=output_tokens,
                    do_sample=False,
                )
                throughput[count] = round(count * output_tokens / (perf_counter() - begun), 1)
    return throughput


if __name__ == "__main__":
    folder, input_tokens, output_tokens, *users = sys.argv[1:]
    json.dump(main(folder, int(input_tokens), int(output_tokens), [int(each) for each in users]), sys.stdout)
