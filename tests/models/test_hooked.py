"""What the hooked decoder refuses, and what it leaves to the model's own code."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import CohereConfig, PretrainedConfig
from transformers.models.gemma.modeling_gemma import GemmaMLP
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaForCausalLM

from cloister.compute.layout import Chunk, Wanted
from cloister.compute.reference import ReferenceKernels
from cloister.engine.runner import ModelRunner, reserve_cache
from cloister.errors import ModelUnsupported
from cloister.models.decoder import Decoder, RawParts
from cloister.models.hooked import HookedDecoder, Window, Windows
from cloister.models.load import check_decoder
from cloister.models.source import open_folder
from tests.models.architectures import CONFIGS, GROUPED, device_of, load_from_files, random_model, save_random_model

KERNELS = ReferenceKernels(torch.float32)
TOKENS = list(range(3, 26))


def hooked(config: PretrainedConfig, weights: dict[str, torch.Tensor] | None = None) -> Decoder:
    weights = random_model(config).state_dict() if weights is None else weights
    decoder = HookedDecoder(config, RawParts(weights, KERNELS), device_of(KERNELS), 512)
    check_decoder(decoder)
    return decoder


def logits_of(decoder: Decoder, tokens: list[int]) -> torch.Tensor:
    runner = ModelRunner(decoder, reserve_cache(decoder, 4))
    return runner.forward([Chunk(tokens, 0, [3, 1, 4], wanted=Wanted.ALL)])


def own_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return logits


def with_attention(config: PretrainedConfig, monkeypatch: pytest.MonkeyPatch, **told: Any) -> None:
    """Llama's attention tells the hook this, too."""
    forward = LlamaAttention.forward
    monkeypatch.setattr(LlamaAttention, "forward", lambda self, *a, **k: forward(self, *a, **{**k, **told}))
    with pytest.raises(ModelUnsupported, match=r"'llama'.*its attention takes 'scores_from_nowhere'"):
        hooked(config)


def test_an_argument_of_attention_that_we_do_not_know_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with_attention(CONFIGS["llama"], monkeypatch, scores_from_nowhere=torch.ones(1))


def test_a_mask_that_is_neither_causal_nor_a_window_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Windows, "mask", lambda *_, **__: Window(None))
    with pytest.raises(ModelUnsupported, match=r"'llama'.*neither causal nor a sliding window"):
        hooked(CONFIGS["llama"])


def test_a_model_whose_attention_stays_its_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Falcon, BLOOM, MPT and XGLM: transformers only warns."""
    monkeypatch.setattr(LlamaForCausalLM, "_can_set_attn_implementation", lambda *_: False)
    with pytest.raises(ModelUnsupported, match=r"'llama'.*cannot replace its attention"):
        hooked(CONFIGS["llama"])


@pytest.mark.parametrize("times", [0, 2])
def test_a_layer_that_calls_our_attention_never_or_twice_is_refused(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where transformers says that it was replaced."""
    forward = LlamaAttention.forward

    def calls(self: Any, hidden_states: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        if self.layer_idx == 1:
            for _ in range(times - 1):
                forward(self, hidden_states, *arguments, **named)
            if not times:
                return hidden_states.mean(1, keepdim=True).expand_as(hidden_states), None
        return forward(self, hidden_states, *arguments, **named)

    monkeypatch.setattr(LlamaAttention, "forward", calls)
    with pytest.raises(ModelUnsupported, match=r"'llama'.*not called once for each layer"):
        hooked(CONFIGS["llama"])


def test_a_model_that_makes_its_own_masks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = LlamaAttention.forward

    def masked(self: Any, *arguments: Any, **named: Any) -> Any:
        return forward(self, *arguments, **{**named, "attention_mask": torch.zeros(1, 1, 1, 1)})

    monkeypatch.setattr(LlamaAttention, "forward", masked)
    with pytest.raises(ModelUnsupported, match=r"'llama'.*makes the masks of its attention itself"):
        hooked(CONFIGS["llama"])


def test_a_model_that_routes_rows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a mixture of experts does: the last row of an expert is some tenant's."""
    forward = GemmaMLP.forward

    def routed(self: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([forward(self, half) for half in (x[:, ::2], x[:, 1::2])], dim=1)[:, : x.shape[1]]

    monkeypatch.setattr(GemmaMLP, "forward", routed)
    with pytest.raises(ModelUnsupported, match=r"'gemma'.*sees other rows"):
        hooked(CONFIGS["gemma"])


def test_a_linear_layer_with_ways_of_its_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Doubled(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(input)

    made = GemmaMLP.__init__

    def other(self: Any, config: Any) -> None:
        made(self, config)
        self.down_proj = Doubled(config.intermediate_size, config.hidden_size, bias=False)

    monkeypatch.setattr(GemmaMLP, "__init__", other)
    with pytest.raises(ModelUnsupported, match=r"'gemma'.*'model\.layers\.0\.mlp\.down_proj' is no ordinary"):
        hooked(CONFIGS["gemma"])


def test_attention_that_is_not_the_models_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hasty(ReferenceKernels):
        def attention(self, q: torch.Tensor, *arguments: Any) -> torch.Tensor:
            return super().attention(0.5 * q, *arguments)

    kernels = Hasty(torch.float32)
    parts = RawParts(random_model(CONFIGS["gemma"]).state_dict(), kernels)
    decoder = HookedDecoder(CONFIGS["gemma"], parts, device_of(kernels), 512)
    with pytest.raises(ModelUnsupported, match=r"'gemma'.*logits are others"):
        check_decoder(decoder)


def test_what_fails_in_transformers_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("what the library says")

    monkeypatch.setattr(GemmaMLP, "forward", fail)
    with pytest.raises(ModelUnsupported, match=r"'gemma'.*ZeroDivisionError at test_hooked\.py") as caught:
        hooked(CONFIGS["gemma"])
    assert "what the library says" not in str(caught.value)


def test_logits_are_scaled_as_the_models_own() -> None:
    config = CohereConfig(**GROUPED, logit_scale=0.0625)
    model = random_model(config)
    expected = own_logits(model, TOKENS)
    got = logits_of(hooked(config, model.state_dict()), TOKENS)
    assert (got - expected).abs().max() < 1e-5 and expected.abs().max() < 2


@pytest.mark.parametrize("cap", [0.5, 5.0])
def test_logits_are_capped_as_the_models_own(cap: float) -> None:
    config = deepcopy(CONFIGS["gemma3"])
    config.final_logit_softcapping = cap
    model = random_model(config)
    expected = own_logits(model, TOKENS)
    got = logits_of(hooked(config, model.state_dict()), TOKENS)
    assert (got - expected).abs().max() < 1e-5 and got.abs().max() <= cap


def test_a_folder_of_gpt_neox_loads_as_it_was_saved_and_as_old_ones_were(tmp_path: Path) -> None:
    """With `embed_out` for the head, and buffers that nobody reads any more."""
    model = save_random_model(tmp_path, CONFIGS["gpt-neox"])
    expected = own_logits(model, TOKENS)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    assert "embed_out.weight" in weights
    for old in (False, True):
        if old:
            attention = "gpt_neox.layers.0.attention"
            weights[f"{attention}.bias"] = torch.ones(1, 1, 8, 8, dtype=torch.bool)
            weights[f"{attention}.masked_bias"] = torch.tensor(-1e9)
            weights[f"{attention}.rotary_emb.inv_freq"] = torch.ones(8)
            save_file(weights, file)
        decoder = load_from_files(open_folder(tmp_path, "tiny"), device_of(KERNELS))
        assert (logits_of(decoder, TOKENS) - expected).abs().max() < 1e-4


def test_onednn_is_off_while_a_model_computes_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would write machine code, which a sealed process may not."""
    onednn: Any = torch.backends.mkldnn
    forward, seen = GemmaMLP.forward, []

    def noting(self: Any, x: torch.Tensor) -> torch.Tensor:
        seen.append(onednn.enabled)
        return forward(self, x)

    monkeypatch.setattr(GemmaMLP, "forward", noting)
    before = onednn.enabled
    decoder = hooked(CONFIGS["gemma"])
    logits_of(decoder, TOKENS)
    assert seen and not any(seen) and onednn.enabled == before
