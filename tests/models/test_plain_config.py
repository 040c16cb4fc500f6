from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from transformers import AutoConfig

from cloister.models.source import ModelFolder, PlainConfig, read_plainly

LEFT_OUT = ("head_dim", "num_key_value_heads", "rms_norm_eps", "tie_word_embeddings", "rope_parameters")
OTHERS: list[dict[str, Any]] = [
    {"model_type": "qwen2"},
    {"hidden_act": "gelu"},
    {"hidden_size": "576"},
    {"sliding_window": 128},
    {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    {"rope_parameters": {"rope_type": "default", "rope_theta": None}},
]


def test_reads_what_transformers_reads(smollm_folder: ModelFolder) -> None:
    plain, known = read_plainly(smollm_folder.config), AutoConfig.from_pretrained(smollm_folder.path)
    assert plain is not None
    for field in PlainConfig.__struct_fields__:
        assert getattr(plain, field) == getattr(known, field, None), field


def test_reads_the_older_way_to_write_rotary_angles(smollm_folder: ModelFolder) -> None:
    newer = smollm_folder.config
    older = {key: value for key, value in newer.items() if key != "rope_parameters"}
    assert read_plainly({**older, "rope_theta": 100000.0, "rope_scaling": None}) == read_plainly(newer)


@pytest.mark.parametrize("field", LEFT_OUT)
def test_leaves_what_is_left_out_to_transformers(smollm_folder: ModelFolder, field: str) -> None:
    assert read_plainly({key: value for key, value in smollm_folder.config.items() if key != field}) is None


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_leaves_the_unusual_to_transformers(smollm_folder: ModelFolder, other: dict[str, Any]) -> None:
    assert read_plainly({**smollm_folder.config, **other}) is None


def test_the_default_model_is_loaded_without_transformers(short_folder: ModelFolder) -> None:
    """A few of its layers: those left out are of the same kind."""
    script = """
import sys
from cloister.compute.choose import choose_device
from cloister.config import EngineSettings
from cloister.models.decoder import RawParts
from cloister.models.load import load_decoder
from cloister.models.source import find_model
from cloister.models.weights import open_weights
from cloister.forkserver import process
folder, device = find_model(sys.argv[1]), choose_device(EngineSettings(threads=1))
load_decoder(folder, RawParts(open_weights(folder), device.kernels), device)
sys.exit("transformers" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", script, str(short_folder.path)], check=False).returncode == 0
