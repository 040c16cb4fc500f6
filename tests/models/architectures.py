"""Small models with random weights, of the architectures we promise to serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    PhiConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from cloister.compute.base import Device, Kernels
from cloister.compute.cpu.native import CpuDevice, NativeKernels
from cloister.compute.reference import ReferenceDevice, ReferenceKernels
from cloister.models.decoder import Decoder, RawParts
from cloister.models.fused import FusedDecoder
from cloister.models.hooked import HookedDecoder
from cloister.models.load import load_decoder
from cloister.models.source import ModelFolder, suits
from cloister.models.weights import open_weights
from tests.models.small_llama import llama_weights

VOCABULARY = 301
COMMON: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
}
GROUPED: dict[str, Any] = {**COMMON, "num_key_value_heads": 2, "head_dim": 16}
GEMMA3_LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}

CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**GROUPED, tie_word_embeddings=True),
    "llama-with-biases": LlamaConfig(**GROUPED, attention_bias=True, mlp_bias=True),
    "llama-yarn": LlamaConfig(**GROUPED, rope_parameters=YARN),
    "mistral-window": MistralConfig(**GROUPED, sliding_window=24),
    "qwen2": Qwen2Config(**GROUPED),
    "qwen3": Qwen3Config(**GROUPED),
    "gpt-neox": GPTNeoXConfig(**COMMON),
    "gemma": GemmaConfig(**GROUPED),
    "gemma3": Gemma3TextConfig(**GROUPED, sliding_window=24, layer_types=GEMMA3_LAYERS),
    "phi": PhiConfig(**COMMON),
}
GPT2 = GPT2Config(n_embd=96, n_layer=2, n_head=6, vocab_size=VOCABULARY)


def random_model(config: PretrainedConfig, seed: int = 0) -> Any:
    """A model whose weights are large enough that a wrong one shows."""
    from transformers import AutoModelForCausalLM  # seconds, which not all who ask for a config here need

    torch.manual_seed(seed)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.15) if parameter.dim() > 1 else parameter.data.add_(
            torch.randn_like(parameter) * 0.05
        )
    return model


def save_random_model(folder: Path, config: PretrainedConfig) -> Any:
    """The model's folder as a user would have it."""
    model = random_model(config)
    model.save_pretrained(folder)
    return model


def device_of(kernels: Kernels) -> Device:
    """The device these kernels belong to."""
    if isinstance(kernels, NativeKernels):
        return CpuDevice(kernels)
    assert isinstance(kernels, ReferenceKernels)
    return ReferenceDevice(kernels)


def load_from_files(folder: ModelFolder, device: Device) -> Decoder:
    """The folder's model with parts packed here and now, in this process's own memory."""
    return load_decoder(folder, RawParts(open_weights(folder), device.kernels), device)


def random_decoder(config: PretrainedConfig, kernels: Kernels) -> Decoder:
    """A random model on these kernels."""
    kind = FusedDecoder if suits(config) else HookedDecoder
    plain = config is CONFIGS["llama"]
    weights = llama_weights(config) if plain else random_model(config).state_dict()
    return kind(config, RawParts(weights, kernels), device_of(kernels), 512)
