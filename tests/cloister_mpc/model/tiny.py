"""Small random models in the clear, as transformers runs them, and as they are shared."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, PretrainedConfig

from cloister.models.source import open_folder
from cloister_mpc.model.shape import ModelShape
from cloister_mpc.model.weights import ModelWeights
from cloister_mpc.provider.calibration import prepare
from tests.models.architectures import save_random_model

VOCABULARY = 301
_LLAMA: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
}
CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**_LLAMA, tie_word_embeddings=True),
    "llama-with-biases": LlamaConfig(**_LLAMA, attention_bias=True, mlp_bias=True),
}


class TinyModel(NamedTuple):
    reference: Any
    shape: ModelShape
    weights: ModelWeights

    def logits(self, tokens: list[int]) -> NDArray[np.float32]:
        """(n, V), as transformers computes them."""
        with torch.no_grad():
            values: NDArray[np.float32] = self.reference(torch.tensor([tokens])).logits[0].numpy()
        return values

    def greedy(self, tokens: list[int], count: int) -> list[int]:
        every = list(tokens)
        for _ in range(count):
            every.append(int(self.logits(every)[-1].argmax()))
        return every[len(tokens) :]


def tiny_model(kind: str, folder: Path) -> TinyModel:
    reference = save_random_model(folder, CONFIGS[kind])
    shape, weights = prepare(open_folder(folder, "tiny"), [some_tokens(48, seed=5)])
    return TinyModel(reference, shape, weights)


def some_tokens(count: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, VOCABULARY, count)]
