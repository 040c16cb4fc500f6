"""A model of random weights, for timing: its answers mean nothing, its speed is that of its shape."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from cloister.models.source import ModelFolder, open_folder

NOISE = 1 << 20
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """About 360 million parameters, unless told."""

    hidden: int = 960
    layers: int = 32
    heads: int = 15
    kv_heads: int = 5
    ffn: int = 2560
    vocabulary: int = 49152

    @property
    def dim(self) -> int:
        return self.hidden // self.heads

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Every weight's name and shape; the head is the embedding's own."""
        yield "model.embed_tokens.weight", (self.vocabulary, self.hidden)
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}"
            yield f"{prefix}.input_layernorm.weight", (self.hidden,)
            yield f"{prefix}.post_attention_layernorm.weight", (self.hidden,)
            yield f"{prefix}.self_attn.q_proj.weight", (self.heads * self.dim, self.hidden)
            yield f"{prefix}.self_attn.k_proj.weight", (self.kv_heads * self.dim, self.hidden)
            yield f"{prefix}.self_attn.v_proj.weight", (self.kv_heads * self.dim, self.hidden)
            yield f"{prefix}.self_attn.o_proj.weight", (self.hidden, self.heads * self.dim)
            yield f"{prefix}.mlp.gate_proj.weight", (self.ffn, self.hidden)
            yield f"{prefix}.mlp.up_proj.weight", (self.ffn, self.hidden)
            yield f"{prefix}.mlp.down_proj.weight", (self.hidden, self.ffn)
        yield "model.norm.weight", (self.hidden,)

    @property
    def parameters(self) -> int:
        return sum(prod(shape) for _, shape in self.tensors())


def write_random_model(folder: Path, shape: LlamaShape, like: ModelFolder) -> ModelFolder:
    """A Llama in bf16 that reads and writes text as `like` does, whose vocabulary must be as large."""
    import torch

    from cloister.models.weights import ShardWriter

    folder.mkdir(parents=True)
    for name in _TOKENIZER:
        if (like.path / name).exists():
            shutil.copyfile(like.path / name, folder / name)
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.dim,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"},
        "tie_word_embeddings": True,
        **{name: like.config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id") if name in like.config},
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    # The same million numbers over and over: how fast a product is does not depend on what is multiplied.
    noise = (torch.randn(NOISE, generator=torch.Generator().manual_seed(0)) * 0.02).to(torch.bfloat16)
    writer = ShardWriter(folder / "model.safetensors", dict(shape.tensors()), torch.bfloat16)
    for name, size in shape.tensors():
        count = prod(size)
        filled = torch.ones(count) if len(size) == 1 else noise.repeat(-(-count // NOISE))[:count]
        writer.write(name, filled)
    writer.close()
    return open_folder(folder, folder.name)
