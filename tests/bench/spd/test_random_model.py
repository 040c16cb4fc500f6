from pathlib import Path

import torch

from cloister.bench.spd.random_model import LlamaShape, write_random_model
from cloister.models.source import ModelFolder
from cloister.models.weights import read_shard


def test_the_default_has_the_shape_of_a_360m_llama() -> None:
    assert 355e6 < LlamaShape().parameters < 370e6 and LlamaShape().dim == 64


def test_every_tensor_is_there_and_the_text_side_is_the_others(smollm_folder: ModelFolder, tmp_path: Path) -> None:
    shape = LlamaShape(hidden=64, layers=2, heads=4, kv_heads=2, ffn=128)
    folder = write_random_model(tmp_path / "tiny", shape, like=smollm_folder)
    tensors = read_shard(folder.path / "model.safetensors")
    assert {name: tensor.shape for name, tensor in tensors.items()} == dict(shape.tensors())
    assert all(tensor.dtype == torch.bfloat16 for tensor in tensors.values())
    weight = tensors["model.layers.1.mlp.up_proj.weight"].float()
    assert 0.015 < float(weight.std()) < 0.025 and bool((tensors["model.norm.weight"] == 1).all())
    name = "tokenizer.json"
    assert (folder.path / name).read_bytes() == (smollm_folder.path / name).read_bytes()
    assert not (folder.path / "cloister-manifest.json").exists()
