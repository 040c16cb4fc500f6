"""Greedy output is transformers' greedy output, token for token, under concurrency, random order and preemption."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import AutoModelForCausalLM

from cloister.messages.generation import SamplingParams
from cloister.models.source import ModelFolder
from cloister.prompts.tokenizer import Tokenizer
from tests.serving.conftest import Decoders, House
from tests.serving.prompts import make_prompts

PROMPTS = 110
TOKENS = 24


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_greedy_equals_transformers(smollm_folder: ModelFolder, decoders: Decoders) -> None:
    tokenizer = Tokenizer(smollm_folder)
    prompts = [tuple(tokenizer.encode(text)) for text in make_prompts(PROMPTS)]
    assert len({len(prompt) for prompt in prompts}) > 30
    order = random.Random(5).sample(range(PROMPTS), PROMPTS)
    house = House(decoders("fp32"), kv_cache_mib=24, chunk_tokens=96, max_running=40)
    params = SamplingParams(max_tokens=TOKENS, temperature=0)
    answers = house.answers([(prompts[i], params) for i in order])
    assert house.engine.stats().preemptions > 10

    model = AutoModelForCausalLM.from_pretrained(smollm_folder.path, dtype=torch.float32).eval()
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    with torch.inference_mode():
        for i, answer in zip(order, answers, strict=True):
            # Greedy decoding is the fixed point: each token is the argmax after those before it.
            whole = torch.tensor([[*prompts[i], *answer.tokens]])
            best = model(whole).logits[0, len(prompts[i]) - 1 : -1].argmax(-1).tolist()
            assert answer.tokens == best, f"prompt {i}"
        for i in range(6):
            mine = answers[order.index(i)].tokens
            generated = model.generate(
                torch.tensor([prompts[i]]), max_new_tokens=TOKENS, do_sample=False, eos_token_id=None
            )
            assert mine == generated[0, len(prompts[i]) :].tolist()
    torch.set_num_threads(threads)
