"""A config.json that says all a Llama-like decoder needs, read without transformers, whose import takes seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class PlainConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Fields by transformers' names. Only the last three have defaults: others differ between models and versions."""

    model_type: Literal["llama"]
    hidden_act: Literal["silu"]
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    rope_parameters: dict[str, Any]
    sliding_window: None = None
    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False


Config: TypeAlias = "PretrainedConfig | PlainConfig"


def read_plainly(config: dict[str, Any]) -> PlainConfig | None:
    """None where something is left out or unusual: then transformers knows best."""
    rotary = config.get("rope_parameters") or {"rope_type": "default", "rope_theta": config.get("rope_theta")}
    if config.get("rope_scaling") or set(rotary) != {"rope_type", "rope_theta"} or rotary["rope_type"] != "default":
        return None
    if not isinstance(rotary["rope_theta"], int | float):
        return None
    try:
        return msgspec.convert({**config, "rope_parameters": rotary}, PlainConfig)
    except msgspec.ValidationError:
        return None
