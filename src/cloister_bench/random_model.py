"""A model of random weights, for timing: its answers mean nothing, its speed is that of its shape."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from cloister.models.source import ModelFolder, open_folder

NOISE = 1 << 20
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")


def write_random_model(place: Path, sizes: Mapping[str, int], like: ModelFolder) -> ModelFolder:
    """A Llama in bf16 of these sizes; its tokenizer and other settings are those of `like`, also a Llama."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from cloister.models.weights import ShardWriter

    settings = {**like.config, **sizes, "architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}
    settings |= {"head_dim": None} if sizes else {}  # it follows from the sizes
    config = LlamaConfig(**settings)
    with torch.device("meta"):
        tensors = dict(LlamaForCausalLM(config).named_parameters())
    folder = place / f"random-llama-{round(sum(each.numel() for each in tensors.values()) / 1e6)}m"
    folder.mkdir(parents=True)
    for name in _TOKENIZER:
        if (like.path / name).exists():
            shutil.copyfile(like.path / name, folder / name)
    (folder / "config.json").write_text(config.to_json_string())
    # The same million numbers over and over: how fast a product is does not depend on what is multiplied.
    noise = (torch.randn(NOISE, generator=torch.Generator().manual_seed(0)) * 0.02).to(torch.bfloat16)
    shapes = {name: tuple(each.shape) for name, each in tensors.items()}
    writer = ShardWriter(folder / "model.safetensors", shapes, torch.bfloat16)
    for name, each in tensors.items():
        count = each.numel()
        writer.write(name, torch.ones(count) if each.dim() == 1 else noise.repeat(-(-count // NOISE))[:count])
    writer.close()
    return open_folder(folder, folder.name)
