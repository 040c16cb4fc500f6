"""int8 weights: one product, bit for bit, by every instruction set and by the reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from cloister.compute.base import Kernels
from cloister.compute.choose import choose_device
from cloister.compute.cpu.library import find_compiler
from cloister.compute.cpu.native import MAX_INT8_K, NativeKernels
from cloister.compute.layer import interleave_gate, quantised, quantised_rows
from cloister.compute.reference import ReferenceKernels
from cloister.config import EngineSettings
from cloister.errors import ModelCorrupt, ModelUnsupported, SetupError
from tests.compute.int8_builds import BUILDS, kernels_built
from tests.examples import examples

REFERENCE = ReferenceKernels(torch.bfloat16, int8=True)
quick = examples(25, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=["here", *BUILDS])
def native(request: pytest.FixtureRequest) -> NativeKernels:
    if find_compiler() is None:
        pytest.skip("no C compiler on this machine")
    return (
        NativeKernels(torch.bfloat16, threads=2, int8=True) if request.param == "here" else kernels_built(request.param)
    )


@pytest.fixture(params=["native", "reference"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    if request.param == "reference":
        return REFERENCE
    if find_compiler() is None:
        pytest.skip("no C compiler on this machine")
    return NativeKernels(torch.bfloat16, threads=2, int8=True)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit for bit, and NaN where the other is."""
    return one.shape == other.shape and torch.equal(
        one.nan_to_num(nan=7.5).view(torch.int32), other.nan_to_num(nan=7.5).view(torch.int32)
    )


def rows_of(rows: int, k: int, draw: torch.Generator) -> torch.Tensor:
    """Ordinary ones, and among them: all of one size, zeros, outliers, next to nothing, more than floats hold."""
    x = torch.randn(rows, k, generator=draw)
    kinds = torch.randint(0, 12, (rows,), generator=draw).tolist()
    for row, kind in enumerate(kinds):
        match kind:
            case 0:
                x[row] = x[row].sign() * 3.5
            case 1:
                x[row] = 0.0
            case 2:
                x[row, row % k] = 4096.0
            case 3:
                x[row] *= 1e-38
            case 4:
                x[row] *= 3e37
            case 5:
                x[row, row % k] = (torch.inf, -torch.inf, torch.nan)[row % 3]
            case 6:  # halves, which go to the even neighbour
                x[row] = torch.randint(-65024, 65025, (k,), generator=draw) / 2
                x[row, 0] = 32512.0
    return x


@quick
@given(rows=st.integers(1, 40), columns=st.integers(1, 100), k=st.integers(1, 200), seed=st.integers(0, 999))
def test_every_build_gives_the_references_bits(
    native: NativeKernels, rows: int, columns: int, k: int, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    x, weight = rows_of(rows, k, draw), torch.randn(columns, k, generator=draw)
    weight[seed % columns] = (0.0, 1e-40, 127.0)[seed % 3]
    bias = torch.randn(columns, generator=draw) if seed % 2 else None
    expected = REFERENCE.linear(x, REFERENCE.pack(weight, bias))
    packed = native.pack(weight, bias)
    together = native.linear(x, packed)
    assert same(together, expected)
    assert same(native.linear(x[rows // 2 :].contiguous(), packed), together[rows // 2 :])
    residual = torch.randn(rows, columns, generator=draw)
    assert same(native.linear(x, packed, add_to=residual.clone()), residual + expected)
    tokens = torch.tensor([0, columns - 1])
    assert same(native.embed(packed, tokens), REFERENCE.embed(REFERENCE.pack(weight), tokens))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_sums_as_large_as_they_can_be_do_not_overflow(native: NativeKernels, sign: float) -> None:
    x, weight = torch.full((3, 16384), 2.0), torch.full((33, 16384), sign)
    x[1, ::2], x[2] = -2.0, 1.9999  # whose low halves are large as well
    assert same(native.linear(x, native.pack(weight)), REFERENCE.linear(x, REFERENCE.pack(weight)))


@pytest.mark.parametrize("gate", ["silu", "gelu_tanh"])
def test_a_gate_has_one_builds_bits(native: NativeKernels, gate: str) -> None:
    draw = torch.Generator().manual_seed(5)
    x, left, right = (torch.randn(rows, 96, generator=draw) for rows in (21, 48, 48))
    weight = interleave_gate(left, right)
    here = NativeKernels(torch.bfloat16, threads=1, int8=True)
    gated = native.linear(x, native.pack(weight, gate=gate))  # type: ignore[arg-type]
    assert same(gated, here.linear(x, here.pack(weight, gate=gate)))  # type: ignore[arg-type]
    expected = REFERENCE.linear(x, REFERENCE.pack(weight, gate=gate))  # type: ignore[arg-type]
    torch.testing.assert_close(gated, expected, rtol=1e-5, atol=1e-4)


def test_a_changed_value_changes_the_product() -> None:
    """The comparison above would see one step of one activation."""
    x, weight = torch.randn(4, 64), torch.randn(40, 64)
    values, scale = quantised_rows(x)
    packed, moved = REFERENCE.pack(weight), (values + torch.eye(4, 64)) * scale
    assert not same(REFERENCE.linear(moved, packed), REFERENCE.linear(x, packed))


def test_the_product_is_near_that_of_the_weights(kernels: Kernels) -> None:
    x, weight = torch.randn(37, 100), torch.randn(70, 100)
    values, scale = quantised(weight)
    packed = kernels.pack(weight)
    assert packed.data.dtype == torch.int8
    exact = x.double() @ (values.double() * scale[:, None].double()).T
    torch.testing.assert_close(kernels.linear(x, packed).double(), exact, rtol=1e-4, atol=5e-3)


def test_a_row_that_is_not_finite_gives_no_numbers_and_leaves_the_others(kernels: Kernels) -> None:
    x, packed = torch.randn(3, 64), kernels.pack(torch.randn(40, 64))
    alone = kernels.linear(x, packed)
    for bad in (torch.nan, torch.inf, -torch.inf):
        x[1, 7] = bad
        out = kernels.linear(x, packed)
        assert out[1].isnan().all() and torch.equal(out[::2], alone[::2])


def test_embedding(kernels: Kernels) -> None:
    weight = torch.randn(50, 48)
    values, scale = quantised(weight)
    tokens = torch.tensor([0, 49, 31])
    assert torch.equal(kernels.embed(kernels.pack(weight), tokens), (values.float() * scale[:, None])[tokens])


def test_quantising_errs_by_half_a_step_at_most() -> None:
    weight = torch.cat((torch.randn(20, 64), torch.zeros(1, 64)))
    values, scale = quantised(weight)
    error = (values.float() * scale[:, None] - weight).abs()
    assert (error <= scale[:, None] / 2 * 1.001).all() and int(values.abs().max()) == 127


def test_weights_that_are_not_numbers_or_too_wide_are_refused() -> None:
    with pytest.raises(ModelCorrupt, match="finite"):
        quantised(torch.tensor([[1.0, torch.nan]]))
    if find_compiler() is not None:
        with pytest.raises(ModelUnsupported, match="too wide"):
            NativeKernels(torch.bfloat16, threads=1, int8=True).pack(torch.zeros(1, MAX_INT8_K + 1))


def test_int8_needs_bf16_and_a_cpu() -> None:
    with pytest.raises(SetupError, match="bf16"):
        choose_device(EngineSettings(dtype="fp32", weights="int8"))
    with pytest.raises(SetupError, match="without int8") as caught:
        choose_device(EngineSettings(kernels="gpu", weights="int8"))
    assert "--kernels native" in str(caught.value.hint)
