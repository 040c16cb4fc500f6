from pathlib import Path

import torch

from cloister.models.source import ModelFolder
from cloister.models.weights import read_shard
from cloister_bench.random_model import write_random_model
from tests.cloister_bench.fakes import TINY


def test_every_tensor_is_there_and_the_text_side_is_the_others(smollm_folder: ModelFolder, tmp_path: Path) -> None:
    folder = write_random_model(tmp_path, TINY, like=smollm_folder)
    assert folder.name == "random-llama-3m" and folder.config["num_hidden_layers"] == 2
    assert folder.config["eos_token_id"] == smollm_folder.config["eos_token_id"]
    tensors = read_shard(folder.path / "model.safetensors")
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    assert len(shapes) == 2 + 2 * 9 and "lm_head.weight" not in shapes, "the head is the embedding's own"
    assert shapes["model.embed_tokens.weight"] == (49152, 64) and shapes["model.norm.weight"] == (64,)
    assert shapes["model.layers.1.self_attn.k_proj.weight"] == (32, 64)
    assert shapes["model.layers.1.mlp.down_proj.weight"] == (64, 128)
    assert all(tensor.dtype == torch.bfloat16 for tensor in tensors.values())
    weight = tensors["model.layers.1.mlp.up_proj.weight"].float()
    assert 0.015 < float(weight.std()) < 0.025 and bool((tensors["model.norm.weight"] == 1).all())
    name = "tokenizer.json"
    assert (folder.path / name).read_bytes() == (smollm_folder.path / name).read_bytes()
    assert not (folder.path / "cloister-manifest.json").exists()
