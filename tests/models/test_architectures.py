"""Every architecture that transformers has a causal language model of is served or refused by name. No third outcome.

Served: as transformers computes it, and the same bits in company and with the prompt in a vault.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from cloister.compute.base import Kernels
from cloister.compute.cpu.library import find_compiler
from cloister.compute.cpu.link import CpuAsker
from cloister.compute.cpu.native import NativeKernels
from cloister.compute.host_cache import HostCache
from cloister.compute.layout import Chunk, Layout, Remote
from cloister.compute.reference import ReferenceKernels
from cloister.errors import ModelUnsupported
from cloister.link.memory import LinkMemory, LinkShape
from cloister.models.decoder import Decoder, RawParts
from cloister.models.fused import FusedDecoder
from cloister.models.hooked import HookedDecoder
from cloister.models.load import load_decoder
from cloister.models.source import ModelFolder, open_folder
from cloister.models.weights import open_weights
from tests.link.vault_stand_in import hidden_of, vault_of
from tests.models.architectures import device_of, random_model
from tests.models.tiny_configs import WORDS, tiny_config

ARCHITECTURES = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
FUSED = frozenset(("llama", "mistral", "qwen2", "qwen3"))
_HOOKED = """apertus arcee bert bert-generation biogpt bitnet cohere cohere2 cohere_compass_text ctrl cwm electra ernie
ernie4_5 exaone4 fuyu gemma gemma3_text gemma3n_text glm glm4 gpt_bigcode gpt_neox granite helium hunyuan_v1_dense
hyperclovax jais2 ministral ministral3 modernbert-decoder moshi nanochat nemotron olmo olmo2 olmo3 persimmon phi phi3
roc_bert seed_oss smollm3 stablelm starcoder2"""
HOOKED = frozenset(_HOOKED.split())
"""Served by transformers' own code. docs/architecture.md lists them."""
_NOT_RUN = """blt gemma3 gemma3n gemma4_assistant gemma4_unified gemma4_unified_assistant got_ocr2 longcat_flash mamba2
moss_transcribe_diarize musicgen musicgen_melody nemotron_h zamba zamba2"""
NOT_RUN = frozenset(_NOT_RUN.split())
"""Too large even when tiny, or without a package that transformers' own code wants. Refused by the configuration."""
REASONS = {
    "is a matrix outside a linear layer": "mixtral gpt2 gpt_oss deepseek_v3 qwen3_moe qwen3_next lfm2 jamba",
    "cannot replace its attention": "bloom mpt xglm gptj gpt_neo codegen",
    "is no ordinary linear layer": "falcon llama4_text",
    "have no attention, or not all the same": "gemma4_text mamba rwkv",
    "takes 'softcap'": "gemma2 vaultgemma",
    "takes 's_aux'": "granite_swa",
    "is not called once for each layer": "diffllama",
    "logits are others": "roberta",
}
REFUSED = {architecture: why for why, names in REASONS.items() for architecture in names.split()}
"""Why some of all the others are refused."""

TOKENS, PROMPT = 40, 33
"""Further than a window sees, and across two ends of a block."""
LARGEST = 20_000_000
"""Parameters of a model whose own forward is worth running."""


@pytest.fixture(autouse=True, scope="module")
def few_words_and_no_onednn() -> Iterator[None]:
    """Vaults are forked here: threads that oneDNN starts on ARM would not be in them."""
    onednn: Any = torch.backends.mkldnn
    enabled, onednn.enabled = onednn.enabled, False
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)
    onednn.enabled = enabled


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return NativeKernels(torch.float32, threads=1) if find_compiler() else ReferenceKernels(torch.float32)


def loaded(folder: ModelFolder, kernels: Kernels, weights: dict[str, torch.Tensor]) -> Decoder:
    return load_decoder(folder, RawParts(weights, kernels), device_of(kernels), 256)


def own_logits(config: PretrainedConfig, folder: Path, tokens: torch.Tensor) -> torch.Tensor:
    """Those of transformers' own forward; the model is left in the folder, as a user would have it."""
    with torch.device("meta"):
        parameters = sum(one.numel() for one in AutoModelForCausalLM.from_config(config).parameters())
    assert parameters < LARGEST, "nobody would wait for it"
    model = random_model(config)
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        logits: torch.Tensor = model(tokens[None], use_cache=False).logits[0]
    model.save_pretrained(folder)
    return logits


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_it_is_served_right_or_refused_by_name(architecture: str, tmp_path: Path, kernels: Kernels) -> None:
    config = tiny_config(architecture)
    tokens = torch.randint(3, WORDS, (TOKENS,), generator=torch.Generator().manual_seed(1))
    try:
        expected = own_logits(config, tmp_path, tokens)
    except Exception:
        # It cannot be run here. Its configuration alone must be enough to refuse it.
        assert architecture in NOT_RUN
        config.save_pretrained(tmp_path)
        with pytest.raises(ModelUnsupported, match=f"'{config.model_type}'"):
            loaded(open_folder(tmp_path, "tiny"), kernels, {})
        return
    assert architecture not in NOT_RUN
    folder = open_folder(tmp_path, "tiny")
    if architecture not in FUSED | HOOKED:
        with pytest.raises(ModelUnsupported, match=f"'{folder.config['model_type']}'") as caught:
            loaded(folder, kernels, open_weights(folder))
        assert REFUSED.get(architecture, "") in caught.value.message
        return
    decoder = loaded(folder, kernels, open_weights(folder))
    assert isinstance(decoder, FusedDecoder if architecture in FUSED else HookedDecoder)
    alone = logits_of(decoder, [Chunk(tokens.tolist(), 0, [3, 1, 4])])
    assert (alone - expected).abs().max() < 1e-4 * expected.abs().max()
    assert torch.equal(in_company(decoder, tokens.tolist()), alone)
    hidden = hidden_of(decoder, HostCache(decoder.cache_shape, 8, decoder.kernels.dtype), [Chunk([5], 0, [6])])
    assert decoder.normed(hidden).shape == (1, decoder.width)
    if find_compiler():
        check_partitioned(decoder, tokens.tolist())


def test_the_lists_name_what_transformers_has() -> None:
    assert FUSED | HOOKED | NOT_RUN | set(REFUSED) <= set(ARCHITECTURES)
    assert not HOOKED & (NOT_RUN | set(REFUSED))


def logits_of(decoder: Decoder, chunks: list[Chunk], cache: HostCache | None = None) -> torch.Tensor:
    cache = cache or HostCache(decoder.cache_shape, 8, decoder.kernels.dtype)
    return decoder.logits(hidden_of(decoder, cache, chunks)).clone()


def in_company(decoder: Decoder, tokens: list[int]) -> torch.Tensor:
    """The same tokens in pieces, each between two other sequences."""
    cache = HostCache(decoder.cache_shape, 8, decoder.kernels.dtype)
    rows, start = [], 0
    for size in (17, 1, 5, 16, 1):
        before, after = Chunk([5] * (size % 3 + 1), 0, [6]), Chunk(tokens[:4], 0, [7])
        mine = Chunk(tokens[start : start + size], start, [2, 5, 0])
        first = len(before.tokens)
        rows.append(logits_of(decoder, [before, mine, after], cache)[first : first + size])
        start += size
    return torch.cat(rows)


def check_partitioned(decoder: Decoder, tokens: list[int]) -> None:
    """The prompt in another process, which answers through a link; beside an answer whose prompt is not."""
    prompt, answer = tokens[:PROMPT], tokens[PROMPT:]
    link = LinkMemory(LinkShape(decoder.heads, decoder.cache_shape.dim, decoder.cache_shape.layers, capacity=32))
    origin, rotation = (0, PROMPT) if decoder.relative else (PROMPT, 0)
    whole = Layout(PROMPT, 0, origin, rotation)
    parted = Layout(0, 0, origin, rotation, Remote(7, 0))
    opened, service = (HostCache(decoder.cache_shape, 8, decoder.kernels.dtype) for _ in range(2))
    with vault_of(decoder, link, [(prompt, 0)]):
        asker = CpuAsker(link.shape, 5000)
        asker.attach(7, *link.service_descriptors)
        hidden_of(decoder, opened, [Chunk(prompt, 0, [0, 1, 2, 3], whole)])
        for at, token in enumerate(answer):
            expected = hidden_of(decoder, opened, [Chunk([token], PROMPT + at, [0, 1, 2, 3], whole)])
            beside = Chunk([9, 8, 7], 0, [5])
            got = hidden_of(decoder, service, [beside, Chunk([token], at, [0], parted)], asker)
            assert asker.broken() == {}
            assert torch.equal(got[3:], expected)
    link.close()
