"""A narrow model with SmolLM2's tokenizer, heads and name: four layers of random weights, little work.

What it says depends on every word of a prompt and makes no sense. For tests that talk to a server and do not read.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from cloister.models.source import ModelFolder, find_model, open_folder

SHAPE = {"hidden_size": 144, "intermediate_size": 384, "num_hidden_layers": 4, "tie_word_embeddings": False}
"""What differs from SmolLM2. An end of its own: with tied embeddings a word would be followed by itself."""
GAIN = 1.5  # of each matrix: with these a greedy answer does not end or go in circles soon
LOGITS = 0.3

_FOLDER = Path(__file__).parents[1] / "artifacts" / "models" / "narrow-2"


def short_model() -> ModelFolder:
    """Made once a checkout; groups of tests that ask at the same time make the same."""
    whole = find_model(None)
    folder = _FOLDER / whole.name
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent))
        _write(whole, made)
        try:
            made.rename(folder)
        except OSError:
            shutil.rmtree(made)  # another group was faster
    return open_folder(folder, whole.name)


def _write(whole: ModelFolder, folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    config = {**whole.config, **SHAPE}
    drawn = torch.Generator().manual_seed(0)

    def draw(rows: int, columns: int, scale: float) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=drawn) * scale).to(torch.bfloat16)

    hidden, words = config["hidden_size"], config["vocab_size"]
    tensors = {"model.embed_tokens.weight": draw(words, hidden, 1.0), "lm_head.weight": draw(words, hidden, LOGITS)}
    for layer in range(config["num_hidden_layers"]):
        for name, (rows, columns) in _matrices(config).items():
            tensors[f"model.layers.{layer}.{name}.weight"] = draw(rows, columns, GAIN * columns**-0.5)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{name}.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    tensors["model.norm.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(whole.path / name, folder)
    os.chmod(folder, 0o755)


def _matrices(config: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Rows and columns of each matrix of a layer."""
    hidden, inner, width = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    attention = {"q": (queries, hidden), "k": (keys, hidden), "v": (keys, hidden), "o": (hidden, queries)}
    mlp = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    return {f"self_attn.{name}_proj": size for name, size in attention.items()} | {
        f"mlp.{name}_proj": size for name, size in mlp.items()
    }
