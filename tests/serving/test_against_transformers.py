"""Greedy output is transformers' greedy output, token for token, under concurrency, random order and preemption."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import AutoModelForCausalLM

from cloister.messages.types import SamplingParams
from cloister.models.source import ModelFolder
from cloister.prompts.tokenizer import Tokenizer
from tests.serving.conftest import Decoders, Node
from tests.serving.prompts import make_prompts

TOKENS = 24


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("model_folder", "count"),
    [("short", 8), pytest.param("whole", 110, marks=pytest.mark.release)],
    indirect=["model_folder"],
)
def test_greedy_equals_transformers(model_folder: ModelFolder, decoders: Decoders, count: int) -> None:
    tokenizer = Tokenizer(model_folder)
    prompts = [tuple(tokenizer.encode(text)) for text in make_prompts(count)]
    assert len({len(prompt) for prompt in prompts}) > count // 4
    order = random.Random(5).sample(range(count), count)
    node = Node(decoders("fp32"), kv_cache_mib=_room_mib(model_folder, count), chunk_tokens=96, max_running=40)
    params = SamplingParams(max_tokens=TOKENS, temperature=0)
    answers = node.answers([(prompts[i], params) for i in order])
    assert node.engine.stats().preemptions > count // 12

    model = AutoModelForCausalLM.from_pretrained(model_folder.path, dtype=torch.float32).eval()
    with torch.inference_mode():
        for i, answer in zip(order, answers, strict=True):
            # Greedy decoding is the fixed point: each token is the argmax after those before it.
            whole = torch.tensor([[*prompts[i], *answer.tokens]])
            best = model(whole).logits[0, len(prompts[i]) - 1 : -1].argmax(-1).tolist()
            assert answer.tokens == best, f"prompt {i}"
        for i in range(max(1, count // 18)):
            mine = answers[order.index(i)].tokens
            generated = model.generate(
                torch.tensor([prompts[i]]), max_new_tokens=TOKENS, do_sample=False, eos_token_id=None
            )
            assert mine == generated[0, len(prompts[i]) :].tolist()


def _room_mib(model: ModelFolder, count: int) -> int:
    """Too little for all prompts at once, whatever the number of layers."""
    return max(2, (12 if count < 20 else 24) * int(model.config["num_hidden_layers"]) // 30)
