"""The linear layer against torch in double precision, and row by row against itself."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from cloister.compute.base import Kernels
from cloister.compute.cpu.native import NativeKernels
from cloister.compute.layer import interleave_gate
from cloister.errors import ModelUnsupported
from tests.examples import examples

quick = examples(25, suppress_health_check=[HealthCheck.function_scoped_fixture])


def exact(x: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.to(dtype).double() @ weight.to(dtype).double().T


@quick
@given(rows=st.integers(1, 70), columns=st.integers(1, 100), k=st.integers(1, 130), seed=st.integers(0, 999))
def test_equals_the_exact_product_for_any_shape(kernels: Kernels, rows: int, columns: int, k: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    x, weight = torch.randn(rows, k, generator=draw), torch.randn(columns, k, generator=draw)
    bias = torch.randn(columns, generator=draw)
    out = kernels.linear(x, kernels.pack(weight, bias))
    expected = exact(x, weight, kernels.dtype) + bias
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=2e-5 * k**0.5)


def test_adds_to_the_residual_in_place(kernels: Kernels) -> None:
    x, weight, residual = torch.randn(9, 64), torch.randn(50, 64), torch.randn(9, 50)
    before = residual.clone()
    out = kernels.linear(x, kernels.pack(weight), add_to=residual)
    assert out.data_ptr() == residual.data_ptr()
    torch.testing.assert_close(residual.double(), before + exact(x, weight, kernels.dtype), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("gate", ["silu", "gelu_tanh"])
def test_gate(kernels: Kernels, gate: str) -> None:
    x, left, right = torch.randn(20, 96), torch.randn(48, 96), torch.randn(48, 96)
    out = kernels.linear(x, kernels.pack(interleave_gate(left, right), gate=gate))  # type: ignore[arg-type]
    inner, up = exact(x, left, kernels.dtype), exact(x, right, kernels.dtype)
    act = torch.nn.functional.silu(inner) if gate == "silu" else torch.nn.functional.gelu(inner, approximate="tanh")
    torch.testing.assert_close(out.double(), act * up, rtol=1e-5, atol=1e-3)


@quick
@given(rows=st.integers(2, 80), columns=st.integers(1, 100), k=st.integers(1, 200), data=st.data())
def test_a_row_is_the_same_in_any_company(
    kernels: Kernels, rows: int, columns: int, k: int, data: st.DataObject
) -> None:
    draw = torch.Generator().manual_seed(rows * columns + k)
    x, packed = torch.randn(rows, k, generator=draw), kernels.pack(torch.randn(columns, k, generator=draw))
    together = kernels.linear(x, packed)
    order = data.draw(st.permutations(range(rows)))
    some = order[: data.draw(st.integers(1, rows))]
    assert torch.equal(kernels.linear(x[some].contiguous(), packed), together[some])


def test_embedding_reads_rows_of_the_packed_matrix(kernels: Kernels) -> None:
    weight, tokens = torch.randn(77, 48), torch.tensor([0, 76, 31, 32, 5])
    assert torch.equal(kernels.embed(kernels.pack(weight), tokens), weight.to(kernels.dtype)[tokens].float())


@quick
@given(rows=st.integers(1, 40), width=st.integers(1, 20).map(lambda n: n * 16))
def test_rms_norm(kernels: Kernels, rows: int, width: int) -> None:
    x, weight = torch.randn(rows, width) * 3, torch.randn(width)
    expected = torch.nn.functional.rms_norm(x.double(), (width,), weight.double(), 1e-5)
    together = kernels.rms_norm(x, weight, 1e-5)
    torch.testing.assert_close(together.double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(kernels.rms_norm(x[rows // 2 :], weight, 1e-5), together[rows // 2 :])


def test_wrong_shapes_never_reach_c(native: NativeKernels) -> None:
    packed = native.pack(torch.randn(40, 64))
    with pytest.raises(ValueError, match="do not suit"):
        native.linear(torch.randn(3, 63), packed)
    with pytest.raises(ValueError, match="another shape"):
        native.linear(torch.randn(3, 64), packed, add_to=torch.zeros(3, 41))
    with pytest.raises(IndexError):
        native.embed(packed, torch.tensor([40]))
    with pytest.raises(IndexError):
        native.embed(packed, torch.tensor([-1]))
    with pytest.raises(ModelUnsupported):
        native.pack(torch.randn(40, 64), gate="silu")
    with pytest.raises(ModelUnsupported):
        native.rms_norm(torch.randn(2, 17), torch.ones(17), 1e-5)


def test_fp32_is_bitwise_the_same_on_every_build(native: NativeKernels) -> None:
    """One chain of fused multiply-adds per element: the definition, whatever the instruction set."""
    if native.dtype != torch.float32:
        pytest.skip("bf16 products may differ between builds")
    other = NativeKernels(torch.float32, threads=1, tiles=False)
    x, weight = torch.randn(33, 100), torch.randn(65, 100)
    assert torch.equal(native.linear(x, native.pack(weight)), other.linear(x, other.pack(weight)))
