"""The Llama family (Llama, Mistral, Qwen2, Qwen3 …) with fused projections: three kernel calls a layer.

Weights are taken by name from a mapping and packed once; the embedding reads the packed output layer when the two are
tied, so weights are held once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import PretrainedConfig

from cloister.errors import ModelCorrupt
from cloister.kernels.base import Gate, Kernels, Layer, LayerShape, Packed, interleave_gate
from cloister.kernels.batch import Batch
from cloister.kernels.cache import CacheShape, KVCache
from cloister.models.decoder import Decoder
from cloister.models.rotary import Rotary

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
GATES: dict[str, Gate] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


def suits(config: PretrainedConfig) -> bool:
    """Whether the model is one of the family, in shapes the kernels take."""
    if config.model_type not in FAMILIES or config.hidden_act not in GATES:
        return False
    widths = (config.hidden_size, config.intermediate_size, _head_dim(config))
    return all(width % 16 == 0 for width in widths) and _head_dim(config) <= 256


class FusedDecoder(Decoder):
    """A Llama-like decoder on the kernels' own layers."""

    def __init__(
        self, config: PretrainedConfig, weights: Mapping[str, torch.Tensor], kernels: Kernels, max_context: int
    ) -> None:
        self.kernels = kernels
        self.max_context = max_context
        self.vocabulary = int(config.vocab_size)
        self._rotary = Rotary(config, _head_dim(config), max_context)
        self._epsilon = float(config.rms_norm_eps)
        source = _Source(weights, kernels)
        self._layers = [self._layer(config, source, index) for index in range(config.num_hidden_layers)]
        self._norm = source.norm("model.norm.weight")
        tied = bool(config.tie_word_embeddings) or "lm_head.weight" not in weights
        self._head = source.packed("model.embed_tokens.weight" if tied else "lm_head.weight")
        self._embedding = self._head if tied else source.packed("model.embed_tokens.weight")
        shape = self._layers[0].shape
        self.cache_shape = CacheShape(len(self._layers), shape.kv_heads, shape.dim)
        self.queries_per_kv_head = shape.heads // shape.kv_heads

    def hidden(self, batch: Batch, cache: KVCache) -> torch.Tensor:
        kernels, angles = self.kernels, self._rotary.at(batch.positions)
        x = kernels.embed(self._embedding, batch.tokens)
        kernels.run_layers(self._layers, x, angles, batch, cache)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.kernels.linear(self.kernels.rms_norm(hidden, self._norm, self._epsilon), self._head)

    def _layer(self, config: PretrainedConfig, source: _Source, index: int) -> Layer:
        name = f"model.layers.{index}"
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"
        gate, up = source.tensor(f"{mlp}.gate_proj.weight"), source.tensor(f"{mlp}.up_proj.weight")
        gate_bias, up_bias = source.optional(f"{mlp}.gate_proj.bias"), source.optional(f"{mlp}.up_proj.bias")
        bias = None
        if gate_bias is not None and up_bias is not None:
            bias = interleave_gate(gate_bias[:, None], up_bias[:, None])[:, 0]
        dim = _head_dim(config)
        shape = LayerShape(
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            dim=dim,
            rotary=self._rotary.width,
            epsilon=self._epsilon,
            scale=dim**-0.5,
            window=_window(config, index),
        )
        return Layer(
            index=index,
            shape=shape,
            attention_norm=source.norm(f"{name}.input_layernorm.weight"),
            qkv=source.joined(*(f"{attention}.{part}_proj" for part in "qkv")),
            q_norm=source.optional_norm(f"{attention}.q_norm.weight"),
            k_norm=source.optional_norm(f"{attention}.k_norm.weight"),
            out=source.joined(f"{attention}.o_proj"),
            mlp_norm=source.norm(f"{name}.post_attention_layernorm.weight"),
            gate_up=source.kernels.pack(interleave_gate(gate, up), bias, GATES[config.hidden_act]),
            down=source.joined(f"{mlp}.down_proj"),
        )


class _Source:
    """Takes tensors by name and packs them."""

    def __init__(self, weights: Mapping[str, torch.Tensor], kernels: Kernels) -> None:
        self.weights = weights
        self.kernels = kernels

    def tensor(self, name: str) -> torch.Tensor:
        try:
            return self.weights[name]
        except KeyError:
            raise ModelCorrupt(
                f"The model's weights lack '{name}'.", hint="Fetch or convert the model again."
            ) from None

    def optional(self, name: str) -> torch.Tensor | None:
        return self.weights.get(name)

    def norm(self, name: str) -> torch.Tensor:
        return self.tensor(name).float().contiguous()

    def optional_norm(self, name: str) -> torch.Tensor | None:
        return self.norm(name) if name in self.weights else None

    def packed(self, name: str) -> Packed:
        return self.kernels.pack(self.tensor(name))

    def joined(self, *names: str) -> Packed:
        """Several layers over the same input as one."""
        weight = torch.cat([self.tensor(f"{name}.weight") for name in names])
        biases = [self.optional(f"{name}.bias") for name in names]
        present = [bias for bias in biases if bias is not None]
        return self.kernels.pack(weight, torch.cat(present) if len(present) == len(names) else None)


def _head_dim(config: PretrainedConfig) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _window(config: Any, index: int) -> int:
    """How many positions back a layer looks; 0 means all."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if not window or (kinds and kinds[index] != "sliding_attention"):
        return 0
    return int(window) if getattr(config, "use_sliding_window", True) else 0
