from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from cloister.errors import ModelCorrupt, ModelNotFound
from cloister.models.source import ModelFolder, find_model
from cloister.models.weights import ShardWriter, open_weights


def folder_of(path: Path) -> ModelFolder:
    return ModelFolder("test", path, {"model_type": "llama"})


def test_a_llama_saved_in_several_shards_opens(tmp_path: Path, small_llama: LlamaForCausalLM) -> None:
    small_llama.save_pretrained(tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    weights = open_weights(find_model(str(tmp_path)))
    original = small_llama.state_dict()
    assert set(weights) == set(original)
    assert all(torch.equal(weights[name], original[name]) for name in original)


def test_a_qwen2_opens_and_leaves_tied_embeddings_to_the_caller(tmp_path: Path) -> None:
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=50,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            tie_word_embeddings=True,
        )
    )
    model.save_pretrained(tmp_path)
    weights = open_weights(find_model(str(tmp_path)))
    assert "lm_head.weight" not in weights
    assert torch.equal(weights["model.layers.0.self_attn.q_proj.bias"], model.model.layers[0].self_attn.q_proj.bias)


def test_tensors_share_the_mapped_file_and_never_change_it(tmp_path: Path) -> None:
    save_file({"a": torch.arange(8, dtype=torch.float32)}, tmp_path / "model.safetensors")
    weights = open_weights(folder_of(tmp_path))
    first, second = weights["a"], weights["a"]
    assert first.data_ptr() == second.data_ptr()
    first[0] = 99.0
    assert open_weights(folder_of(tmp_path))["a"][0] == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_every_dtype_and_odd_shapes(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {"scalar": torch.ones((), dtype=dtype), "empty": torch.ones((0, 3), dtype=dtype)}
    tensors["odd"] = torch.ones((3, 5), dtype=dtype)
    save_file(tensors, tmp_path / "model.safetensors")
    weights = open_weights(folder_of(tmp_path))
    for name, tensor in tensors.items():
        assert torch.equal(weights[name], tensor) and weights[name].shape == tensor.shape


def test_our_writer_is_read_by_safetensors(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    tensors = {"a": torch.randn(3, 4), "b": torch.randn(5)}
    writer = ShardWriter(tmp_path / "x.safetensors", {"a": (3, 4), "b": (5,)}, torch.float32)
    for name in ("b", "a"):
        writer.write(name, tensors[name])
    assert writer.missing == set()
    writer.close()
    loaded = load_file(tmp_path / "x.safetensors")
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)


def test_a_folder_without_weights_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="safetensors"):
        open_weights(folder_of(tmp_path))


def test_a_truncated_file_is_caught_at_opening(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.arange(100)}, path)
    whole = path.read_bytes()
    for length in (0, 5, 20, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelCorrupt):
            open_weights(folder_of(tmp_path))


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [4], "data_offsets": [0, 12]},
        {"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]},
        {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [4], "data_offsets": [16, 32]},
        {"dtype": "F32", "shape": [4.0], "data_offsets": [0, 16]},
        {"dtype": "Q9", "shape": [4], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": "4", "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [0, 2**70], "data_offsets": [0, 0]},
        {"dtype": "F32", "shape": [4]},
        {"dtype": ["F32"], "shape": [4], "data_offsets": [0, 16]},
        "a string",
        None,
    ],
)
def test_a_header_that_lies_is_caught(tmp_path: Path, entry: object) -> None:
    header = json.dumps({"a": entry}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
    with pytest.raises(ModelCorrupt, match="header"):
        open_weights(folder_of(tmp_path))


@pytest.mark.parametrize(
    ("index", "error"),
    [
        ("{", ModelCorrupt),
        ('{"weight_map": 3}', ModelCorrupt),
        ('{"weight_map": {"a": "gone.safetensors"}}', ModelNotFound),
        ('{"weight_map": {"a": "../outside.safetensors"}}', ModelCorrupt),
        ('{"weight_map": {"other": "part.safetensors"}}', ModelCorrupt),
        ('{"weight_map": {"a": 7}}', ModelCorrupt),
    ],
)
def test_a_bad_index_is_explained(tmp_path: Path, index: str, error: type[Exception]) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "part.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(error):
        open_weights(folder_of(tmp_path))
