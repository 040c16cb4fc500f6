"""What the kernels are launched with, checked."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cloister.compute.base import KVCache
from cloister.compute.gpu.program import Argument, i32
from cloister.compute.layer import Layer
from cloister.compute.layout import Batch
from cloister.errors import ModelUnsupported

# that attention reads; tokens are embedded before, and are not copied again
BATCH = ("positions", "slots", "span", "tables", "segments", "counts", "rotations", "tile_row", "tile_rows")


@dataclass(frozen=True, slots=True, repr=False)
class Sums:
    values: torch.Tensor
    bias: torch.Tensor | None
    splits: int
    pitch: int


def described(sums: Sums | None, rows: int) -> tuple[Argument, ...]:
    if sums is None:
        return (None, None, i32(0), i32(rows), i32(0))
    return (sums.values, sums.bias, i32(sums.splits), i32(rows), i32(sums.pitch))


def on_device(batch: Batch, cache: KVCache) -> Batch:
    """No row of it reaches outside the cache."""
    if batch.remotes:
        raise ValueError("only recorded steps reach a vault")
    if int(batch.tables.max()) >= cache.blocks or int(batch.tables.min()) < 0:
        raise IndexError("a block is outside the cache")
    placed = {name: getattr(batch, name).to("cuda", non_blocking=True) for name in BATCH}
    return Batch(batch.rows, batch.tokens, **placed)


def unsuited(what: str) -> ModelUnsupported:
    return ModelUnsupported(f"{what} does not suit the GPU's kernels.", hint="Compute on the CPU: --kernels native.")


def check(layer: Layer) -> None:
    norms = (layer.attention_norm, layer.mlp_norm, layer.q_norm, layer.k_norm)
    if any(norm is not None and not norm.is_cuda for norm in norms):
        raise ValueError("a norm's weight is not in the GPU's memory")
    if layer.shape.rotary != layer.shape.dim:
        raise unsuited("A model that rotates parts of its heads")
