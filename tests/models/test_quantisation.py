"""Quantised folders as publishers lay them out: refused by the method's name, before anything reads a weight."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from cloister.compute.reference import ReferenceKernels
from cloister.errors import ModelUnsupported
from cloister.models.decoder import RawParts
from cloister.models.load import load_decoder
from cloister.models.source import find_model, open_folder
from cloister.models.weights import open_weights
from tests.models.architectures import device_of
from tests.models.small_llama import llama_config, llama_weights

CONFIGS: dict[str, dict[str, Any]] = {
    "fp8 e4m3": {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}},
    "compressed-tensors float-quantized": {
        "quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized"}
    },
    "compressed-tensors int-quantized": {
        "quantization_config": {"quant_method": "compressed-tensors", "format": "int-quantized"}
    },
    "awq": {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 64}},
    "gptq": {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 64}},
    "bitsandbytes load_in_4bit": {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
    "mxfp4": {"quantization_config": {"quant_method": "mxfp4"}},
    "of next year": {"text_config": {"quantization_config": {"quant_method": "of next year"}}},
    "sparse": {"compression_config": {"format": "sparse"}},
    "a method that it does not name": {"quantization_config": {"bits": 3}},
}
FILES = {
    "quantize_config.json": ({"bits": 4, "group_size": 128}, "gptq"),
    "quant_config.json": ({"w_bit": 4}, "awq"),
    "hf_quant_config.json": ({"producer": {}, "quantization": {"quant_algo": "NVFP4"}}, "NVFP4"),
}


def folder_with(path: Path, **config: Any) -> Path:
    (path / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    return path


@pytest.mark.parametrize("method", CONFIGS)
def test_a_quantised_folder_is_refused_by_its_methods_name(tmp_path: Path, method: str) -> None:
    with pytest.raises(ModelUnsupported, match=rf"quantised \({method}\)") as caught:
        find_model(str(folder_with(tmp_path, **CONFIGS[method])))
    assert "unquantised" in str(caught.value.hint) and "GGUF" in str(caught.value.hint)


@pytest.mark.parametrize("name", FILES)
def test_a_method_that_has_a_file_of_its_own_is_refused(tmp_path: Path, name: str) -> None:
    described, method = FILES[name]
    (folder_with(tmp_path) / name).write_text(json.dumps(described))
    with pytest.raises(ModelUnsupported, match=rf"quantised \({method}\)"):
        find_model(str(tmp_path))
    (tmp_path / name).write_text("{")
    with pytest.raises(ModelUnsupported, match="quantised"):
        find_model(str(tmp_path))


def test_a_configuration_that_says_that_nothing_is_quantised_is_served(tmp_path: Path) -> None:
    find_model(str(folder_with(tmp_path, quantization_config=None, compression_config={})))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8, torch.int32])
@pytest.mark.parametrize("name", ["model.layers.0.mlp.up_proj.weight", "model.layers.1.input_layernorm.weight"])
def test_weights_of_another_kind_are_refused_whatever_the_configuration_says(
    tmp_path: Path, dtype: torch.dtype, name: str
) -> None:
    config = llama_config(64, 64, 4, 2)
    weights = llama_weights(config)
    weights[name] = weights[name].to(dtype)
    save_file(weights, tmp_path / "model.safetensors")
    fields = {field: getattr(config, field) for field in config.__struct_fields__}
    folder = open_folder(folder_with(tmp_path, **fields), "tiny")
    kernels = ReferenceKernels(torch.float32)
    kind = str(dtype).removeprefix("torch.")
    with pytest.raises(ModelUnsupported, match=rf"'{name}' is stored as {kind}"):
        load_decoder(folder, RawParts(open_weights(folder), kernels), device_of(kernels))
