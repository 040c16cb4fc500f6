"""A small Llama without transformers' own, whose import takes seconds; test_decoders.py compares the weights."""

from __future__ import annotations

import torch

from cloister.models.source import Config, PlainConfig


def llama_config(vocabulary: int, hidden: int, heads: int, kv_heads: int, *, tied: bool = False) -> PlainConfig:
    """Two layers, heads of 16, contexts of 256 tokens."""
    return PlainConfig(
        model_type="llama",
        hidden_act="silu",
        hidden_size=hidden,
        intermediate_size=hidden * 3 // 2,
        vocab_size=vocabulary,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=16,
        rms_norm_eps=1e-6,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )


def llama_weights(config: Config, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random, and large enough that a wrong one shows."""
    draw = torch.Generator().manual_seed(seed)
    hidden, inner = config.hidden_size, config.intermediate_size
    rows, kv_rows = (count * config.head_dim for count in (config.num_attention_heads, config.num_key_value_heads))

    def matrix(height: int, width: int) -> torch.Tensor:
        return torch.randn(height, width, generator=draw) * 0.15

    def norm() -> torch.Tensor:
        return 1 + torch.randn(hidden, generator=draw) * 0.05

    weights = {"model.embed_tokens.weight": matrix(config.vocab_size, hidden), "model.norm.weight": norm()}
    tied = config.tie_word_embeddings
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"] if tied else matrix(config.vocab_size, hidden)
    for layer in range(config.num_hidden_layers):
        within = {
            "self_attn.q_proj": matrix(rows, hidden),
            "self_attn.k_proj": matrix(kv_rows, hidden),
            "self_attn.v_proj": matrix(kv_rows, hidden),
            "self_attn.o_proj": matrix(hidden, rows),
            "mlp.gate_proj": matrix(inner, hidden),
            "mlp.up_proj": matrix(inner, hidden),
            "mlp.down_proj": matrix(hidden, inner),
            "input_layernorm": norm(),
            "post_attention_layernorm": norm(),
        }
        weights |= {f"model.layers.{layer}.{name}.weight": tensor for name, tensor in within.items()}
    return weights
