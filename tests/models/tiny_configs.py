"""A tiny configuration of any architecture that transformers knows: its own defaults, with small sizes."""

from __future__ import annotations

import inspect
from typing import Any

from transformers import CONFIG_MAPPING, PretrainedConfig

WIDTH, INNER, LAYERS, HEADS, KV_HEADS, DIM, WORDS, CONTEXT, WINDOW = 64, 96, 2, 4, 2, 16, 128, 256, 8

SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "embedding_size", "dim", "emb_dim", "n_embed"), WIDTH),
    **dict.fromkeys(("word_embed_proj_dim", "model_dim", "attention_hidden_size", "d_embed"), WIDTH),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "dff", "n_inner", "ffn_hidden_size", "dim_ff"), INNER),
    **dict.fromkeys(("decoder_ffn_dim", "encoder_ffn_dim", "d_inner", "feed_forward_size", "mlp_hidden_size"), INNER),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), LAYERS),
    **dict.fromkeys(("encoder_layers", "num_encoder_layers", "num_decoder_layers", "num_blocks"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"), HEADS),
    **dict.fromkeys(("encoder_attention_heads", "num_encoder_attention_heads", "num_decoder_attention_heads"), HEADS),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), KV_HEADS),
    **dict.fromkeys(("head_dim", "d_kv", "v_head_dim", "qk_nope_head_dim", "qk_rope_head_dim"), DIM),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "d_head", "index_head_dim", "kv_channels"), DIM),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), CONTEXT),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "top_k_experts"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_dim"), 32),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "n_shared_experts"), 1),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "linear_num_key_heads", "linear_num_value_heads"), 4),
    **dict.fromkeys(("mamba_d_head", "linear_key_head_dim", "linear_value_head_dim", "mamba_headdim"), 32),
    "sliding_window": WINDOW,
    "is_decoder": True,
    "vocab_size": WORDS,
    "vocab_size_per_layer_input": WORDS,
    "hidden_size_per_layer_input": DIM,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""By the names that configurations use. Only those that a configuration has by default are set."""

_USUAL = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_ANGLES = {"rope_type": "default", "rope_theta": 1e4}
_ALL_HEADS = {"num_key_value_heads": HEADS}
SPECIAL: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("axk1", "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32", "youtu", "minicpm3"), _ALL_HEADS),
    **dict.fromkeys(("glm4_moe_lite", "glm_moe_dsa"), _ALL_HEADS),
    "codegen": {"rotary_dim": 8},
    "gptj": {"rotary_dim": 8},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "zaya": {"num_experts_per_tok": 1},
    "reformer": {"axial_pos_embds": False, "attn_layers": ["local", "lsh"], "attention_head_size": DIM},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": dict.fromkeys(("sliding_attention", "full_attention"), _ANGLES),
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": KV_HEADS, "rope_theta": 1e4, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "fuyu": {"text_config": {"model_type": "persimmon", **{name: SIZES[name] for name in _USUAL}}, "patch_size": 4},
    "gemma4_assistant": {
        "text_config": {
            "model_type": "gemma4_text",
            **{name: SIZES[name] for name in _USUAL},
            **dict.fromkeys(("hidden_size_per_layer_input", "vocab_size_per_layer_input"), 0),
            "num_kv_shared_layers": LAYERS,
        }
    },
    "moshi": {"audio_vocab_size": WORDS},
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "intermediate_size": [INNER] * 4,
        "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
    },
    "granite": {
        "logits_scaling": 8.0,
        "embedding_multiplier": 12.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.22,
    },
    "gemma3_text": {"layer_types": ["sliding_attention", "full_attention"], "final_logit_softcapping": 5.0},
    "falcon_h1": {"mamba_d_ssm": 128},
    "mamba2": {"num_heads": 4, "head_dim": 32},
    "zamba": {"layer_types": ["linear_attention", "hybrid"]},
    "zamba2": {"layer_types": ["linear_attention", "hybrid"]},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
}
"""What an architecture needs beside."""


def tiny_config(architecture: str) -> PretrainedConfig:
    """Raises whatever the configuration's own checks raise."""
    return _tiny(CONFIG_MAPPING[architecture], SPECIAL.get(architecture, {}))


def _tiny(kind: type[PretrainedConfig], special: dict[str, Any]) -> PretrainedConfig:
    known = set(inspect.signature(kind.__init__).parameters)
    wanted = {name: size for name, size in SIZES.items() if name in known}
    for name, part in kind.sub_configs.items():
        if name in known and issubclass(part, PretrainedConfig) and part is not PretrainedConfig:
            wanted[name] = _tiny(part, {}).to_dict()
    return kind(**{**wanted, **special})
