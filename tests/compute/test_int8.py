"""int8 weights: the product is that of the weights the int8 values stand for, and rows keep to themselves."""

from __future__ import annotations

import pytest
import torch

from cloister.compute.base import Kernels
from cloister.compute.choose import choose_device
from cloister.compute.cpu.library import find_compiler
from cloister.compute.cpu.native import NativeKernels
from cloister.compute.layer import quantised
from cloister.compute.reference import ReferenceKernels
from cloister.config import EngineSettings
from cloister.errors import SetupError


@pytest.fixture(params=["native", "native-without-tiles", "reference"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    if request.param == "reference":
        return ReferenceKernels(torch.bfloat16, int8=True)
    if find_compiler() is None:
        pytest.skip("no C compiler on this machine")
    return NativeKernels(torch.bfloat16, threads=2, tiles=request.param == "native", int8=True)


def test_the_product_is_that_of_the_quantised_weights(kernels: Kernels) -> None:
    x, weight, bias = torch.randn(37, 100), torch.randn(70, 100), torch.randn(70)
    values, scale = quantised(weight)
    expected = x.bfloat16().double() @ (values.double() * scale[:, None].double()).T + bias
    packed = kernels.pack(weight, bias)
    assert packed.data.dtype == torch.int8
    together = kernels.linear(x, packed)
    torch.testing.assert_close(together.double(), expected, rtol=1e-5, atol=1e-4)
    assert torch.equal(kernels.linear(x[5:8].contiguous(), packed), together[5:8])


def test_embedding(kernels: Kernels) -> None:
    weight = torch.randn(50, 48)
    values, scale = quantised(weight)
    tokens = torch.tensor([0, 49, 31])
    assert torch.equal(kernels.embed(kernels.pack(weight), tokens), (values.float() * scale[:, None])[tokens])


def test_quantising_errs_by_half_a_step_at_most() -> None:
    weight = torch.cat((torch.randn(20, 64), torch.zeros(1, 64)))
    values, scale = quantised(weight)
    error = (values.float() * scale[:, None] - weight).abs()
    assert (error <= scale[:, None] / 2 * 1.001).all()


def test_int8_needs_bf16() -> None:
    with pytest.raises(SetupError, match="bf16"):
        choose_device(EngineSettings(dtype="fp32", weights="int8"))
