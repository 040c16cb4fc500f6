"""Random weights have the names of a real model's: a decoder refuses tensors that it does not use."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from cloister.models.source import read_plainly
from cloister_bench.gpu.weights import RandomWeights

SIZES = {"hidden_size": 32, "intermediate_size": 48, "vocab_size": 64, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}


@pytest.mark.parametrize("tied", [False, True])
def test_they_are_named_as_a_llamas_are(tied: bool) -> None:
    config = LlamaConfig(**SIZES, **HEADS, tie_word_embeddings=tied)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    plain = read_plainly({**config.to_dict(), "torch_dtype": "bfloat16"})
    assert plain is not None
    weights = RandomWeights(plain)
    assert set(weights) == {name for name, _ in model.named_parameters()}
    assert len(weights) == len(set(weights)) and "model.norm.weight" in weights and "lm_head.bias" not in weights
