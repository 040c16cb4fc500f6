from __future__ import annotations

import pytest
import torch

from cloister.compute.layer import interleave_gate
from cloister.compute.reference import ReferenceKernels
from cloister.errors import ModelCorrupt
from cloister.models.decoder import RawParts

WEIGHTS = {
    "q.weight": torch.randn(8, 4).bfloat16(),
    "k.weight": torch.randn(4, 4).bfloat16(),
    "q.bias": torch.randn(8),
    "k.bias": torch.randn(4),
    "gate.weight": torch.randn(16, 4),
    "up.weight": torch.randn(16, 4),
    "norm.weight": torch.randn(4).bfloat16(),
    "steps": torch.arange(3),
}


def parts(**others: torch.Tensor | None) -> RawParts:
    chosen = {**WEIGHTS, **others}
    return RawParts(
        {name: tensor for name, tensor in chosen.items() if tensor is not None}, ReferenceKernels(torch.float32)
    )


def test_joined_layers_stand_in_order_with_their_biases() -> None:
    both = parts().joined("k", "q")
    assert torch.equal(both.data, torch.cat((WEIGHTS["k.weight"], WEIGHTS["q.weight"])).float())
    assert both.bias is not None and torch.equal(both.bias, torch.cat((WEIGHTS["k.bias"], WEIGHTS["q.bias"])))
    assert (both.columns, both.k, both.gate) == (12, 4, None)


def test_gate_and_up_are_interleaved() -> None:
    gated = parts().joined("gate", "up", gate="silu")
    assert torch.equal(gated.data, interleave_gate(WEIGHTS["gate.weight"], WEIGHTS["up.weight"]))
    assert gated.bias is None and gated.gate == "silu"
    biases = {f"{name}.bias": torch.randn(16) for name in ("gate", "up")}
    bias = parts(**biases).joined("gate", "up", gate="silu").bias
    assert bias is not None and torch.equal(bias, torch.cat((biases["gate.bias"], biases["up.bias"])))


def test_a_bias_that_only_some_of_the_joined_layers_have_is_missed() -> None:
    with pytest.raises(ModelCorrupt, match=r"k\.bias"):
        parts(**{"k.bias": None}).joined("q", "k")


def test_floats_are_widened_and_whole_numbers_left() -> None:
    found = parts()
    assert torch.equal(found.tensor("norm.weight"), WEIGHTS["norm.weight"].float())
    assert found.tensor("steps").dtype == torch.int64
    with pytest.raises(ModelCorrupt, match=r"no\.weight"):
        found.tensor("no.weight")


def test_what_nobody_asked_for_is_left_over() -> None:
    found = parts()
    assert found.leftover() == set(WEIGHTS)
    found.joined("q", "k")
    found.joined("gate", "up", gate="silu")
    assert found.has("steps") and found.leftover() == {"norm.weight", "steps"}
