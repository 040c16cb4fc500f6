"""Small models with random weights, made on the spot: Hugging Face folders and a GGUF file."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from cloister.models import convert, gguf_converter
from cloister.models.source import head_dim
from tests.models.vocabularies import ALPHABET, CHATML, CONTROL, NORMAL, Vocabulary

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ t", "h e", "Ġt he"]
VOCABULARY = [*SPECIAL, *ALPHABET, *(merge.replace(" ", "") for merge in MERGES)]
SMOLLM = Vocabulary(
    "gpt2",
    "smollm",
    VOCABULARY,
    [CONTROL] * len(SPECIAL) + [NORMAL] * (len(VOCABULARY) - len(SPECIAL)),
    {"bos_token_id": 1, "eos_token_id": 2},
    CHATML,
    merges=MERGES,
)


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """As in every process that computes, where the kernels have a team of their own."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("CLOISTER_CACHE", str(folder))
    return folder


class ConverterThread:
    """The converter in a thread of this process, which has loaded what takes a process of its own seconds to load."""

    returncode = 0

    def __init__(self, module: str, peer: socket.socket) -> None:
        assert module == "cloister.models.gguf_converter"
        self._peer = peer
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._peer:
            gguf_converter.main(self._peer)

    def kill(self) -> None:
        pass

    def wait(self, patience_s: float) -> None:
        self._thread.join(patience_s)


@pytest.fixture(autouse=True)
def converter_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what is converted; those of processes start some that know nothing of this."""
    monkeypatch.setattr(convert, "run_module", ConverterThread)


@pytest.fixture(scope="session")
def small_llama() -> LlamaForCausalLM:
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


@pytest.fixture
def small_gguf(tmp_path: Path, small_llama: LlamaForCausalLM) -> Path:
    """The small Llama as llama.cpp's converter would write it, q and k permuted."""
    path = tmp_path / "tiny-llama.F32.gguf"
    write_gguf(path, small_llama)
    return path


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    *,
    vocabulary: Vocabulary = SMOLLM,
    drop: str | None = None,
    rope_scaling: bool = False,
    extra: dict[str, torch.Tensor] | None = None,
    **fields: float,
) -> None:
    """As llama.cpp's converter writes it: its own names, q and k permuted for Llama alone, Gemma's norms one larger."""
    config = model.config
    # llama.cpp has no architecture of Mistral's own.
    architecture = {"gemma3_text": "gemma3", "mistral": "llama"}.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(f"tiny {architecture}")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    if architecture in ("qwen3", "gemma3"):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    angles = config.rope_parameters
    writer.add_rope_freq_base(angles.get("full_attention", angles)["rope_theta"])
    if architecture in ("gemma3", "phi3") and config.sliding_window:
        writer.add_sliding_window(config.sliding_window)
    writer.add_rope_dimension_count(head_dim(config))
    for key, value in fields.items():
        writer.add_float32(f"{architecture}.{key}", value)
    writer.add_vocab_size(config.vocab_size)
    if rope_scaling:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    vocabulary.write(writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    if architecture != "llama":
        heads = {}
    for name, tensor in model.state_dict().items():
        if name == drop or (name == "lm_head.weight" and config.tie_word_embeddings):
            continue
        values = tensor.float().numpy()
        if architecture == "gemma3" and name.endswith("norm.weight"):
            values = values + 1
        for projection, count in heads.items():
            if projection in name:
                values = _permuted(values, count)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), np.ascontiguousarray(values))
    for name, tensor in (extra or {}).items():
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _permuted(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a head as llama.cpp wants them: halves interleaved."""
    rows, columns = values.shape
    return values.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
