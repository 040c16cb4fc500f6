"""Weights of a shape, drawn at random: they mean nothing, and take as long as others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from cloister.models.plain_config import PlainConfig


class RandomWeights(Mapping[str, torch.Tensor]):
    """Weights of a Llama of this shape, made on the GPU when they are asked for."""

    def __init__(self, config: PlainConfig) -> None:
        hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
        queries, keys = config.num_attention_heads * dim, config.num_key_value_heads * dim
        self._layer = {
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        self._ends = ("model.embed_tokens", *(() if config.tie_word_embeddings else ("lm_head",)))
        self._norms = ("input_layernorm", "post_attention_layernorm")
        self._layers = config.num_hidden_layers
        self._vocabulary = (config.vocab_size, hidden)
        self._hidden = hidden

    def __getitem__(self, name: str) -> torch.Tensor:
        if "norm" in name:
            return torch.rand(self._hidden, device="cuda") + 0.5
        stem = name.removesuffix(".weight")
        shape = self._vocabulary if stem in self._ends else self._layer[stem.split(".", 3)[3]]
        drawn: torch.Tensor = torch.randn(shape, device="cuda") * float(shape[1]) ** -0.5
        return drawn.bfloat16()

    def __iter__(self) -> Iterator[str]:
        yield from (f"{name}.weight" for name in (*self._ends, "model.norm"))
        for layer in range(self._layers):
            yield from (f"model.layers.{layer}.{name}.weight" for name in (*self._layer, *self._norms))

    def __contains__(self, name: object) -> bool:
        return name in set(self)

    def __len__(self) -> int:
        return sum(1 for _ in self)
