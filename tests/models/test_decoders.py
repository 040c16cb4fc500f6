"""Every architecture, on every kernel: equal to transformers, and the same rows in any company."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

import pytest
import torch
from transformers import LlamaConfig, PretrainedConfig

from cloister.compute.base import Kernels
from cloister.compute.cpu.library import find_compiler
from cloister.compute.cpu.native import NativeKernels
from cloister.compute.layer import Packed
from cloister.compute.layout import Chunk, Wanted
from cloister.compute.reference import ReferenceKernels
from cloister.engine.runner import ModelRunner, reserve_cache
from cloister.errors import ModelCorrupt, ModelUnsupported
from cloister.models.decoder import Decoder, RawParts
from cloister.models.fused import FusedDecoder
from cloister.models.hooked import HookedDecoder
from cloister.models.source import suits
from tests.models.architectures import CONFIGS, GPT2, GROUPED, VOCABULARY, device_of, random_model
from tests.models.small_llama import llama_weights

DecoderKind = type[FusedDecoder] | type[HookedDecoder]

TOKENS = 70
ONE_BY_ONE = (*(1,) * 34, 36)
"""Across two ends of a block, and further than a window sees."""
CHUNKS = ((7, 16, 1, 30, 1, 15), ONE_BY_ONE, (64, 6))


def decoders(config: PretrainedConfig) -> list[DecoderKind]:
    return [FusedDecoder, HookedDecoder] if suits(config) else [HookedDecoder]


def built(kind: DecoderKind, config: PretrainedConfig, weights: Mapping[str, torch.Tensor]) -> Decoder:
    kernels = ReferenceKernels(torch.float32)
    return kind(config, RawParts(weights, kernels), device_of(kernels), 512)


def kernels_under_test(dtype: torch.dtype) -> list[Kernels]:
    """The native ones without tiles, too, where the processor has tiles: elsewhere they are the same."""
    native: dict[str, Kernels] = {}
    if find_compiler():
        native = {k.name: k for k in (NativeKernels(dtype, threads=2, tiles=tiles) for tiles in (True, False))}
    return [*native.values(), ReferenceKernels(dtype)]


def chunks_for(kind: DecoderKind, config: PretrainedConfig, kernels: Kernels) -> tuple[tuple[int, ...], ...]:
    """All of them for what serves; fewer for what is slow, or serves only where the fused one cannot."""
    serves = kind is decoders(config)[0]
    return CHUNKS if serves and not isinstance(kernels, ReferenceKernels) else CHUNKS[:1]


def whole(decoder: Decoder, tokens: list[int]) -> torch.Tensor:
    runner = ModelRunner(decoder, reserve_cache(decoder, 4))
    return runner.forward([Chunk(tokens, 0, [3, 1, 4, 0, 7], wanted=Wanted.ALL)])


def in_company(decoder: Decoder, tokens: list[int], chunks: tuple[int, ...], seed: int) -> torch.Tensor:
    """The same tokens in chunks, each step between other sequences of random lengths."""
    runner = ModelRunner(decoder, reserve_cache(decoder, 4))
    draw = torch.Generator().manual_seed(seed)
    done, rows = 0, []
    for size in chunks:
        counts = torch.randint(1, 9, (int(torch.randint(0, 8, (1,), generator=draw)),), generator=draw).tolist()
        others = [
            Chunk(torch.randint(0, VOCABULARY, (n,), generator=draw).tolist(), 0, [10 + i], wanted=Wanted.ALL)
            for i, n in enumerate(counts)
        ]
        mine = Chunk(tokens[done : done + size], done, [2, 5, 6, 8, 9], wanted=Wanted.ALL)
        rows.append(runner.forward([*others, mine, *others])[sum(counts) : sum(counts) + size])
        done += size
    return torch.cat(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", CONFIGS)
def test_equals_transformers_and_leaves_no_trace(name: str, dtype: torch.dtype) -> None:
    config = CONFIGS[name]
    model = random_model(config)
    weights = dict(model.state_dict())
    tokens = torch.randint(0, VOCABULARY, (TOKENS,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = model(tokens[None]).logits[0]
        states = model.base_model(tokens[None]).last_hidden_state[0]
    for kernels in kernels_under_test(dtype):
        for kind in decoders(config):
            decoder = kind(config, RawParts(weights, kernels), device_of(kernels), 512)
            logits = whole(decoder, tokens.tolist())
            tolerance = 1e-4 if dtype == torch.float32 else 0.5
            assert (logits - expected).abs().max() < tolerance, (kind, kernels.name)
            runner = ModelRunner(decoder, reserve_cache(decoder, 4))
            state = runner.states(
                [Chunk([5, 6], 0, [7]), Chunk(tokens.tolist(), 0, [3, 1, 4, 0, 2], wanted=Wanted.LAST)]
            )
            assert (state - states[-1:]).norm() < tolerance * states[-1:].norm(), (kind, kernels.name)
            for chunks in chunks_for(kind, config, kernels):
                same = torch.equal(in_company(decoder, tokens.tolist(), chunks, len(chunks)), logits)
                assert same, (kind, kernels.name, chunks)


@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_weights_stored_in_bf16_serve_in_fp32(name: str) -> None:
    config = CONFIGS[name]
    model = random_model(config)
    stored = {key: tensor.bfloat16() for key, tensor in model.state_dict().items()}
    model.load_state_dict({key: tensor.float() for key, tensor in stored.items()})
    tokens = list(range(20))
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).logits[0]
    for kind in decoders(config):
        decoder = built(kind, config, stored)
        assert (whole(decoder, tokens) - expected).abs().max() < 1e-4, kind


@pytest.mark.parametrize("name", ["llama", "llama-yarn"])
def test_weights_made_without_transformers_have_its_names_and_shapes(name: str) -> None:
    made, known = llama_weights(CONFIGS[name]), random_model(CONFIGS[name]).state_dict()
    assert {key: tensor.shape for key, tensor in made.items()} == {key: tensor.shape for key, tensor in known.items()}
    assert (made["lm_head.weight"] is made["model.embed_tokens.weight"]) == (name == "llama")


class NoisyNeighbours(ReferenceKernels):
    """Breaks the promise on purpose: a row's product depends on how many rows there are."""

    def linear(self, x: torch.Tensor, packed: Packed, add_to: torch.Tensor | None = None) -> torch.Tensor:
        return super().linear(x * (1 + 1e-6 * len(x)), packed, add_to)


def test_the_invariance_check_can_fail() -> None:
    config = CONFIGS["llama"]
    tokens = list(range(TOKENS))
    kernels = NoisyNeighbours(torch.float32)
    decoder = FusedDecoder(config, RawParts(random_model(config).state_dict(), kernels), device_of(kernels), 512)
    assert not torch.equal(in_company(decoder, tokens, (7, 16, 1, 30, 1, 15), 3), whole(decoder, tokens))


def test_matrices_outside_linear_layers_are_refused() -> None:
    with pytest.raises(ModelUnsupported, match="outside a linear layer"):
        built(HookedDecoder, GPT2, random_model(GPT2).state_dict())


def test_angles_that_depend_on_neighbours_are_refused() -> None:
    config = LlamaConfig(**GROUPED, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})
    weights = dict(random_model(config).state_dict())
    for kind in (FusedDecoder, HookedDecoder):
        with pytest.raises(ModelUnsupported, match="dynamic"):
            built(kind, config, weights)


BOTH = [FusedDecoder, HookedDecoder]
STRANGE = {
    "model.layers.0.mlp.up_proj.weight_scale": torch.ones(160, 1),
    "model.layers.0.self_attn.q_norm.weight": torch.ones(16),
    "model.layers.0.mlp.shared_expert.weight": torch.ones(3, 3),
    "lm_head.weight": torch.ones(VOCABULARY, 96),
    "model.layers.3.input_layernorm.weight": torch.ones(96),
}


@pytest.mark.parametrize("name", STRANGE)
@pytest.mark.parametrize("kind", BOTH)
def test_a_tensor_that_the_model_does_not_use_is_refused(kind: DecoderKind, name: str) -> None:
    """The scales of quantised weights among them; and a second output layer beside a tied one."""
    weights = {**random_model(CONFIGS["llama"]).state_dict(), name: STRANGE[name]}
    with pytest.raises(ModelUnsupported, match=rf"'{name}', which the architecture 'llama' does not use"):
        built(kind, CONFIGS["llama"], weights)


@pytest.mark.parametrize("kind", BOTH)
def test_copies_of_tied_weights_and_old_tables_of_angles_are_passed_over(kind: DecoderKind) -> None:
    weights = dict(random_model(CONFIGS["llama"]).state_dict())
    expected = whole(built(kind, CONFIGS["llama"], weights), [1, 2, 3])
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    assert torch.equal(whole(built(kind, CONFIGS["llama"], weights), [1, 2, 3]), expected)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(("name", "other"), [("llama", "llama-with-biases"), ("llama-with-biases", "llama-yarn")])
def test_biases_against_the_configuration_are_refused(kind: DecoderKind, name: str, other: str) -> None:
    weights = dict(random_model(CONFIGS[other]).state_dict())
    if CONFIGS[name].tie_word_embeddings:
        del weights["lm_head.weight"]
    with pytest.raises((ModelUnsupported, ModelCorrupt), match=r"proj\.bias"):
        built(kind, CONFIGS[name], weights)


@pytest.mark.parametrize("kind", BOTH)
def test_an_output_layer_that_is_neither_stored_nor_tied_is_missed(kind: DecoderKind) -> None:
    weights = dict(random_model(CONFIGS["llama-yarn"]).state_dict())
    del weights["lm_head.weight"]
    with pytest.raises(ModelCorrupt, match=r"lm_head\.weight"):
        built(kind, CONFIGS["llama-yarn"], weights)


def test_layers_of_another_kind_are_refused() -> None:
    config = deepcopy(CONFIGS["qwen3"])
    config.layer_types = ["full_attention", "chunked_attention", "full_attention"]
    with pytest.raises(ModelUnsupported, match=r"'qwen3'.*chunked_attention"):
        built(FusedDecoder, config, random_model(CONFIGS["qwen3"]).state_dict())


@pytest.mark.parametrize("kind", BOTH)
def test_a_missing_weight_is_named(kind: DecoderKind) -> None:
    weights = dict(random_model(CONFIGS["qwen2"]).state_dict())
    del weights["model.layers.1.mlp.down_proj.weight"]
    with pytest.raises(ModelCorrupt, match=r"layers\.1\.mlp\.down_proj"):
        built(kind, CONFIGS["qwen2"], weights)
