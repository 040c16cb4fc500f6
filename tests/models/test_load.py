"""A decoder that mixes the rows of a batch is found out before it serves."""

from __future__ import annotations

import pytest
import torch

from cloister.compute.base import Step
from cloister.compute.layer import Packed
from cloister.compute.reference import ReferenceKernels
from cloister.errors import ModelUnsupported
from cloister.models.load import check_decoder, mixes_rows
from tests.models.architectures import CONFIGS, random_decoder

FAMILIES = ("llama", "gemma3")


class ManyRowsAreOthers(ReferenceKernels):
    """A row's product depends on how many rows there are."""

    def linear(self, x: torch.Tensor, packed: Packed, add_to: torch.Tensor | None = None) -> torch.Tensor:
        return super().linear(x * (1 + 1e-6 * len(x)), packed, add_to)


class OneSequence(ReferenceKernels):
    """Attention that takes the batch for one sequence, as that of models that we cannot replace."""

    def attention(self, q: torch.Tensor, layer: int, step: Step, scale: float, window: int = 0) -> torch.Tensor:
        attended = super().attention(q, layer, step, scale, window)
        return attended.cumsum(0) / torch.arange(1, len(q) + 1)[:, None]


class FirstIsOther(ReferenceKernels):
    """Only the first row of a batch is computed otherwise."""

    def linear(self, x: torch.Tensor, packed: Packed, add_to: torch.Tensor | None = None) -> torch.Tensor:
        scale = torch.ones(len(x), 1)
        scale[0] += 1e-6 * len(x)
        return super().linear(x * scale, packed, add_to)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_decoder_that_keeps_rows_apart_passes(name: str) -> None:
    decoder = random_decoder(CONFIGS[name], ReferenceKernels(torch.float32))
    assert not mixes_rows(decoder)
    check_decoder(decoder)


@pytest.mark.parametrize("kernels", [ManyRowsAreOthers, OneSequence, FirstIsOther])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_decoder_that_mixes_rows_is_refused(name: str, kernels: type[ReferenceKernels]) -> None:
    decoder = random_decoder(CONFIGS[name], kernels(torch.float32))
    assert mixes_rows(decoder)
    with pytest.raises(ModelUnsupported, match=f"'{CONFIGS[name].model_type}'.*depends on what else"):
        check_decoder(decoder)
