from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaForCausalLM,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
)

from cloister.compute.layout import Chunk, Wanted
from cloister.compute.reference import ReferenceKernels
from cloister.engine.runner import ModelRunner, reserve_cache
from cloister.errors import ModelCorrupt, ModelUnsupported, SetupError
from cloister.models.source import find_model
from cloister.models.weights import open_weights
from cloister.prompts.tokenizer import Tokenizer
from tests.models.architectures import device_of, load_from_files, random_model
from tests.models.conftest import VOCABULARY, write_gguf
from tests.models.vocabularies import FAMILIES

CONVERT = "import sys; from cloister.models.source import find_model; print(find_model(sys.argv[1]).path)"


def test_a_gguf_becomes_the_weights_it_was_written_from(
    cache: Path, small_gguf: Path, small_llama: LlamaForCausalLM
) -> None:
    folder = find_model(str(small_gguf))
    weights = open_weights(folder)
    original = small_llama.state_dict()
    assert set(weights) == set(original)
    for name in weights:
        assert torch.equal(weights[name], original[name]), name
    assert folder.name == "tiny-llama"
    assert cache in folder.path.parents


@pytest.mark.parametrize("kind", [Qwen2Config, Qwen3Config])
def test_other_architectures_take_the_same_road(
    cache: Path, tmp_path: Path, kind: type[Qwen2Config] | type[Qwen3Config]
) -> None:
    config = kind(
        vocab_size=len(VOCABULARY),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=128,
        tie_word_embeddings=False,
    )
    model = random_model(config).to(torch.bfloat16)
    write_gguf(tmp_path / "tiny-other.gguf", model)
    weights = open_weights(find_model(str(tmp_path / "tiny-other.gguf")))
    assert {name: weights[name].tolist() for name in weights} == {
        name: tensor.tolist() for name, tensor in model.state_dict().items()
    }


KERNELS = ReferenceKernels(torch.float32)


def gemma3(**others: Any) -> Any:
    """Two kinds of layers, with angles of their own; a window that 20 tokens fill."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 7, "max_position_embeddings": 128}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32, "query_pre_attn_scalar": 32}
    words = {"vocab_size": len(FAMILIES["gemma3"].tokens), "pad_token_id": None, "sliding_window": 8}
    config = Gemma3TextConfig(**sizes, **heads, **words, **others)
    assert set(config.layer_types) == {"sliding_attention", "full_attention"}
    return rounded(random_model(config))


def rounded(model: Any) -> Any:
    """Weights that bf16 can hold. The angles stay what they are."""
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    return model


def phi3() -> Any:
    config = Phi3Config(
        vocab_size=len(FAMILIES["phi3"].tokens),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        sliding_window=8,
        tie_word_embeddings=False,
        pad_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    )
    return rounded(random_model(config))


@pytest.mark.parametrize(("family", "cap"), [("gemma3", None), ("gemma3", 3.0), ("phi3", None)])
def test_a_converted_model_computes_what_it_was_written_from(
    cache: Path, tmp_path: Path, family: str, cap: float | None
) -> None:
    model = gemma3(final_logit_softcapping=cap) if family == "gemma3" else phi3()
    fields = {"final_logit_softcapping": cap} if cap else {}
    write_gguf(tmp_path / "tiny.gguf", model, vocabulary=FAMILIES[family], **fields)
    decoder = load_from_files(find_model(str(tmp_path / "tiny.gguf")), device_of(KERNELS))
    tokens = [token % decoder.vocabulary for token in range(3, 43, 2)]
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).logits[0]
    runner = ModelRunner(decoder, reserve_cache(decoder, 4))
    got = runner.forward([Chunk(tokens, 0, [3, 1, 4], wanted=Wanted.ALL)])
    assert (got - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize(
    "field", ["logit_scale", "residual_scale", "embedding_scale", "attention.scale", "final_logit_softcapping"]
)
def test_a_field_that_changes_the_model_and_is_not_carried_over_is_refused(
    cache: Path, tmp_path: Path, small_llama: LlamaForCausalLM, field: str
) -> None:
    write_gguf(tmp_path / "tiny.gguf", small_llama, **{field: 2.0})
    with pytest.raises(ModelUnsupported, match=field):
        find_model(str(tmp_path / "tiny.gguf"))


@pytest.mark.parametrize("name", ["blk.0.attn_q.bias", "blk.1.attn_q_norm.weight", "blk.0.strange"])
def test_a_tensor_that_the_model_does_not_use_is_refused(
    cache: Path, tmp_path: Path, small_llama: LlamaForCausalLM, name: str
) -> None:
    write_gguf(tmp_path / "tiny.gguf", small_llama, extra={name: torch.ones(16)})
    with pytest.raises(ModelUnsupported, match="which the model does not use"):
        find_model(str(tmp_path / "tiny.gguf"))


def test_transformers_loads_the_converted_folder_to_the_same_logits(
    cache: Path, tmp_path: Path, small_gguf: Path, small_llama: LlamaForCausalLM
) -> None:
    small_llama.save_pretrained(tmp_path / "original")
    folder = find_model(str(small_gguf))
    # Both loaded the same way: a model cast to bf16 in memory has its rotary frequencies rounded too.
    converted = AutoModelForCausalLM.from_pretrained(folder.path, dtype=torch.bfloat16)
    original = AutoModelForCausalLM.from_pretrained(tmp_path / "original", dtype=torch.bfloat16)
    tokens = torch.arange(10, 30)[None]
    with torch.no_grad():
        assert torch.equal(converted(tokens).logits, original(tokens).logits)


def test_the_tokenizer_and_its_special_tokens_come_out_right(cache: Path, small_gguf: Path) -> None:
    tokenizer = Tokenizer(find_model(str(small_gguf)))
    assert tokenizer.stop_tokens == (2,)
    ids = tokenizer.render_chat([{"role": "user", "content": "see the  12"}])
    assert ids[0] == 1 and ids.count(1) == 2 and ids.count(2) == 1
    assert tokenizer.decode(ids) == "user\nsee the  12\nassistant\n"


def test_a_second_call_converts_nothing(cache: Path, small_gguf: Path) -> None:
    first = find_model(str(small_gguf)).path / "model.safetensors"
    before = first.stat()
    find_model(str(small_gguf))
    assert first.stat().st_mtime_ns == before.st_mtime_ns and first.stat().st_ino == before.st_ino


@pytest.mark.release
def test_two_conversions_at_once_do_the_work_once(cache: Path, small_gguf: Path) -> None:
    """With the converter as it is: a process of its own."""
    command = [sys.executable, "-c", CONVERT, str(small_gguf)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    results = [child.communicate(timeout=240) for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert results[0][0] == results[1][0] != ""
    assert sum("Converting tiny-llama" in errors for _, errors in results) == 1


def test_a_changed_byte_in_the_weights_is_caught(cache: Path, small_gguf: Path) -> None:
    weights = find_model(str(small_gguf)).path / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ModelCorrupt, match="changed since it was converted") as caught:
        open_weights(find_model(str(small_gguf)))
    assert "Remove the folder" in str(caught.value)


def test_a_changed_byte_beside_the_weights_is_caught_at_once(cache: Path, small_gguf: Path) -> None:
    settings = find_model(str(small_gguf)).path / "tokenizer.json"
    settings.write_bytes(settings.read_bytes().replace(b"a", b"b", 1))
    with pytest.raises(ModelCorrupt, match="changed since it was converted"):
        find_model(str(small_gguf))


def test_a_lost_file_is_caught(cache: Path, small_gguf: Path) -> None:
    (find_model(str(small_gguf)).path / "tokenizer.json").unlink()
    with pytest.raises(ModelCorrupt, match=r"lacks .*tokenizer\.json"):
        find_model(str(small_gguf))


def test_a_spoilt_manifest_is_caught(cache: Path, small_gguf: Path) -> None:
    (find_model(str(small_gguf)).path / "cloister-manifest.json").write_text('{"name": 3}')
    with pytest.raises(ModelCorrupt, match="manifest"):
        find_model(str(small_gguf))


def test_a_truncated_gguf_is_refused_and_leaves_nothing(cache: Path, small_gguf: Path) -> None:
    small_gguf.write_bytes(small_gguf.read_bytes()[:2000])
    with pytest.raises(ModelCorrupt, match="not a readable GGUF"):
        find_model(str(small_gguf))
    assert [path for path in (cache / "models").iterdir() if path.is_dir()] == []


def test_a_file_that_is_no_gguf_is_refused(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "poem.gguf"
    path.write_text("Roses are red")
    with pytest.raises(ModelCorrupt, match="not a readable GGUF"):
        find_model(str(path))


def test_an_unknown_architecture_is_refused(cache: Path, small_gguf: Path) -> None:
    small_gguf.write_bytes(small_gguf.read_bytes().replace(b"llama", b"lamma"))
    with pytest.raises(ModelUnsupported, match="architecture lamma"):
        find_model(str(small_gguf))


def test_a_missing_tensor_is_refused(cache: Path, tmp_path: Path, small_llama: LlamaForCausalLM) -> None:
    path = tmp_path / "holey.gguf"
    write_gguf(path, small_llama, drop="model.layers.1.mlp.up_proj.weight")
    with pytest.raises(ModelUnsupported, match=r"lacks 1 tensors, model\.layers\.1\.mlp\.up_proj\.weight"):
        find_model(str(path))
    assert [path for path in (cache / "models").iterdir() if path.is_dir()] == []


def test_scaled_rotary_positions_are_refused_rather_than_dropped(
    cache: Path, tmp_path: Path, small_llama: LlamaForCausalLM
) -> None:
    path = tmp_path / "scaled.gguf"
    write_gguf(path, small_llama, rope_scaling=True)
    with pytest.raises(ModelUnsupported, match="rotary"):
        find_model(str(path))


def test_a_cache_that_cannot_be_written_is_explained(
    tmp_path: Path, small_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CLOISTER_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(SetupError, match="CLOISTER_CACHE"):
        find_model(str(small_gguf))


def test_config_says_what_servers_need(cache: Path, small_gguf: Path) -> None:
    folder = find_model(str(small_gguf))
    assert folder.config["architectures"] == ["LlamaForCausalLM"]
    assert folder.config["dtype"] == "bfloat16"
    assert json.loads((folder.path / "generation_config.json").read_text())["eos_token_id"] == 2
    assert os.sep not in json.dumps(folder.config), "no path of the machine that converted"
