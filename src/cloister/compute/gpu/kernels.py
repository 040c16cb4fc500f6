"""The GPU behind the contract. Addresses go to it from tensors checked here for device, size and order."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cloister.compute.base import Kernels, KVCache, Step
from cloister.compute.gpu import program
from cloister.compute.gpu.cache import DTYPE, GpuCache, on_gpu
from cloister.compute.gpu.find import DIMS
from cloister.compute.gpu.link import GpuAsker, StepAsks
from cloister.compute.gpu.products import (
    STEP,
    TILE,
    Widths,
    Workspace,
    capacity,
    launch_of,
    padded_rows,
    splits_of,
    tiles_of,
)
from cloister.compute.gpu.program import Argument, i32
from cloister.compute.gpu.queries import GROUP_TOKENS, MOST_VALUES
from cloister.compute.layer import Angles, Gate, Layer, Packed
from cloister.compute.layout import BLOCK_TOKENS, SEGMENTS, Batch
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


GATES: dict[Gate | None, int] = {None: 0, "silu": 1, "gelu_tanh": 2}
QUERIES = 16
BEFORE_AND_AFTER = 2
MOST_HIDDEN = 4 * 512 * 8
PART = 4  # floats of a part beside its attention


class GpuKernels(Kernels):
    """Launches without waiting. One caller at a time: scratch memory belongs to one step at once."""

    name = "cuda"
    dtype = DTYPE

    def __init__(self) -> None:
        self._program: program.Kernels | None = None
        self._spaces: dict[tuple[int, Widths], Workspace] = {}
        self._parts: dict[int, torch.Tensor] = {}
        self._prepared: tuple[Batch, Batch] | None = None
        self.crowded = False  # others may stay on the processors at any time (program.py)
        self._asking: StepAsks | None = None  # where the rows of the step at hand find the parts of their private spans

    # ---- weights

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None, gate: Gate | None = None) -> Packed:
        """In the memory where the weight lies: the packer's process has no GPU."""
        columns, k = weight.shape
        if k % STEP or (gate and (columns % TILE or bias is not None)):
            raise unsuited(f"A weight of {columns} × {k}")
        data = weight.to(DTYPE)
        if gate:  # sixteen gates, sixteen gated → eight and eight, which one tensor operation gives to one lane
            data = data.view(-1, 2, 2, 8, k).transpose(1, 2).reshape(columns, k)
        ragged = -columns % TILE
        data = torch.nn.functional.pad(data, (0, 0, 0, ragged)).view(-1, TILE, k // 8, 8).transpose(1, 2).contiguous()
        placed = None if bias is None else torch.nn.functional.pad(bias.to(torch.float32), (0, ragged))
        return Packed(data, columns, k, placed, gate)

    # ---- rows

    def embed(self, packed: Packed, tokens: torch.Tensor) -> torch.Tensor:
        if not tokens.is_cuda and len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < packed.columns:
            raise IndexError("a token id is outside the vocabulary")
        out = torch.empty(len(tokens), packed.k, device="cuda")
        if len(tokens):
            placed = tokens.to("cuda")
            self.launch("embed", (len(tokens),), 256, placed, packed.data, out, i32(packed.k))
            if placed is not tokens:
                placed.zero_()  # in the stream's order; torch keeps freed memory of the device as it is
        return out

    def linear(self, x: torch.Tensor, packed: Packed, add_to: torch.Tensor | None = None) -> torch.Tensor:
        if not len(x):
            return torch.empty(0, packed.width, device=x.device)
        rows, padded = len(x), padded_rows(len(x))
        if x.shape[1:] != (packed.k,) or x.dtype != torch.float32 or not x.is_cuda:
            raise ValueError(f"rows of {tuple(x.shape)} do not suit a weight of k={packed.k}")
        if add_to is not None and (packed.gate or add_to.shape != (rows, packed.columns) or not add_to.is_contiguous()):
            raise ValueError("the sum's target has another shape than the product")
        laid = torch.zeros(padded * packed.k, dtype=DTYPE, device="cuda")
        self.launch("lay_rows", (rows,), 256, x.contiguous(), laid, i32(padded), i32(packed.k))
        if packed.gate:
            gated = torch.empty(padded * packed.width, dtype=DTYPE, device="cuda")
            out = torch.empty(rows, packed.width, device="cuda")
            self._product(laid, packed, padded, gated=gated)
            self.launch("unlay_rows", (rows,), 256, gated, out, i32(padded), i32(packed.width))
            return out
        pitch = tiles_of(packed) * TILE
        room = torch.empty(launch_of(packed, padded).splits, padded, pitch, device="cuda")
        sums = self._product(laid, packed, padded, room)
        if add_to is None and sums.splits == 1 and packed.bias is None:
            return room[0, :rows, : packed.columns]
        out = torch.empty(rows, packed.columns, device="cuda") if add_to is None else add_to
        blocks = (rows, -(-packed.columns // 256))
        self.launch(
            "add_ranges", blocks, 256, out, *described(sums, padded), i32(packed.columns), i32(add_to is not None)
        )
        return out

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """Rounded to bf16 as every product would."""
        if not len(x):
            return torch.empty_like(x)
        width = x.shape[-1]
        rows = x.numel() // width
        normed = torch.empty(rows * width, dtype=DTYPE, device="cuda")
        self._norm(x.contiguous(), None, rows, width, rows, weight, epsilon, normed)
        out = torch.empty_like(x)
        self.launch("unlay_rows", (rows,), 256, normed, out, i32(rows), i32(width))
        return out

    # ---- attention

    def store(self, keys: torch.Tensor, values: torch.Tensor, layer: int, batch: Batch, cache: KVCache) -> None:
        rows, kv_heads, dim = keys.shape
        both = torch.cat((keys.reshape(rows, -1), values.reshape(rows, -1)), dim=1).float().contiguous()
        sums = Sums(both, None, 1, 2 * kv_heads * dim)
        none = (None, None, np.float32(0), None, None)
        if (kv_heads, dim) != (cache.shape.kv_heads, cache.shape.dim):
            raise ValueError("keys and values have another shape than the cache")
        self._rotate(sums, rows, rows, none, self._on_gpu(batch, cache), both, on_gpu(cache), layer, 0)

    def attention(self, q: torch.Tensor, layer: int, step: Step, scale: float, window: int = 0) -> torch.Tensor:
        rows, heads, dim = q.shape
        batch = self._on_gpu(step.batch, step.cache)
        attended = torch.empty(rows * heads * dim, dtype=DTYPE, device="cuda")
        cache = on_gpu(step.cache)
        self._attend(q.float().contiguous(), attended, rows, batch, step.angles, cache, layer, heads, scale, window)
        out = torch.empty(rows, heads * dim, device="cuda")
        self.launch("unlay_rows", (rows,), 256, attended, out, i32(rows), i32(heads * dim))
        return out

    def run_layers(self, layers: Sequence[Layer], x: torch.Tensor, step: Step) -> None:
        if step.batch.asks is None:
            return self._run_layers(layers, x, step)
        if not isinstance(step.asker, GpuAsker):
            raise ValueError("the links are another device's")
        self._asking = step.asker.step(step.batch.asks)
        try:
            self._asking.begin_step(self.launch)
            self._run_layers(layers, x, step)
        finally:
            self._asking = None

    def _run_layers(self, layers: Sequence[Layer], x: torch.Tensor, step: Step) -> None:
        shape, rows, angles = layers[0].shape, len(x), step.angles
        assert angles is not None
        cache, batch = on_gpu(step.cache), self._on_gpu(step.batch, step.cache)
        padded = padded_rows(rows)
        space = self.workspace(layers[0], rows)
        before: Sums | None = None
        for layer in layers:
            shape = layer.shape
            hidden = layer.qkv.k
            self._norm(x, before, rows, hidden, padded, layer.attention_norm, shape.epsilon, space.normed, layer.index)
            qkv = self._product(space.normed, layer.qkv, padded, space.sums, asks=layer.index)
            norms = (layer.q_norm, layer.k_norm, np.float32(shape.epsilon), angles.cosine, angles.sine)
            self._rotate(qkv, rows, padded, norms, batch, space.q, cache, layer.index, shape.heads)
            self._attend(
                *(space.q, space.attended, padded, batch, angles, cache, layer.index),
                *(shape.heads, shape.scale, shape.window),
            )
            out = self._product(space.attended, layer.out, padded, space.sums)
            self._norm(x, out, rows, hidden, padded, layer.mlp_norm, shape.epsilon, space.normed)
            self._product(space.normed, layer.gate_up, padded, gated=space.gated)
            before = self._product(space.gated, layer.down, padded, space.sums)
        self._norm(x, before, rows, layers[0].qkv.k, padded, None, 0.0, None)

    def forget(self) -> None:
        for space in self._spaces.values():
            space.wipe()
        for parts in self._parts.values():
            parts.zero_()
        self._prepared = None

    def workspace(self, layer: Layer, rows: int) -> Workspace:
        shape, products = layer.shape, (layer.qkv, layer.out, layer.down)
        check(layer)
        pitches = [tiles_of(packed) * TILE for packed in products]
        few = max(pitch * splits_of(packed) for pitch, packed in zip(pitches, products, strict=True))
        widths = Widths(layer.qkv.k, shape.heads * shape.dim, layer.gate_up.width, few, max(pitches))
        key = (capacity(rows), widths)
        if key not in self._spaces:
            self._spaces[key] = Workspace.of(*key)
        return self._spaces[key]

    # ---- launches

    def launch(
        self,
        name: str,
        grid: tuple[int, ...],
        threads: int,
        *arguments: program.Argument,
        beside: bool = False,
        **how: Any,
    ) -> None:
        """As `program.Kernels.launch`."""
        if self._program is None:
            self._program = program.program(DIMS[-1])
        beside = beside or self.crowded or (self._asking is not None and self._asking.stays)
        self._program.launch(name, grid, threads, *arguments, beside=beside, **how)

    def _product(
        self,
        x: torch.Tensor,
        packed: Packed,
        rows: int,
        sums: torch.Tensor | None = None,
        gated: torch.Tensor | None = None,
        asks: int | None = None,
    ) -> Sums:
        """`asks`: a layer, whose queries this product gives."""
        tiles, launch = tiles_of(packed), launch_of(packed, rows)
        numbers = (i32(rows), i32(packed.k), i32(tiles), i32(splits_of(packed)), i32(GATES[packed.gate]))
        opening: tuple[program.Argument, ...] = (None, None, None, i32(0), i32(0), i32(0))
        if self._asking is not None and asks is not None:
            opening = self._asking.opening(asks)
        given = (x, packed.data, sums, gated, *numbers, *opening)
        self.launch(launch.name, launch.grid, launch.threads, *given, shared=launch.shared)
        result = gated if sums is None else sums
        assert result is not None
        return Sums(result, packed.bias, launch.splits, tiles * TILE)

    def _norm(
        self,
        x: torch.Tensor,
        before: Sums | None,
        rows: int,
        k: int,
        padded: int,
        weight: torch.Tensor | None,
        epsilon: float,
        normed: torch.Tensor | None,
        begins: int | None = None,
    ) -> None:
        """`begins`: a layer, where it is the first norm of one."""
        if k % 8 or k > MOST_HIDDEN:
            raise unsuited(f"A norm over {k} values")
        product = described(before, padded)
        threads = min(512, -(-k // 256) * 32)
        warned: tuple[program.Argument, ...] = (None, None, i32(0))
        if self._asking is not None and begins is not None:
            warned = self._asking.warning(begins)
        self.launch("add_and_norm", (rows,), threads, x, *product, i32(k), weight, np.float32(epsilon), normed, *warned)

    def _rotate(
        self,
        sums: Sums,
        rows: int,
        padded: int,
        norms: tuple[program.Argument, ...],
        batch: Batch,
        q: torch.Tensor,
        cache: GpuCache,
        layer: int,
        heads: int,
    ) -> None:
        kv_heads = cache.shape.kv_heads
        self.suit(cache.shape.dim)
        grid = (rows, -(-(heads + 2 * kv_heads) // 8))
        product = described(sums, padded)
        place = (cache.layer(layer), cache.block_stride, i32(heads), i32(kv_heads))
        unasked: tuple[program.Argument, ...] = (None, None, i32(0), i32(0))
        posting = unasked if self._asking is None or not heads else self._asking.posting(layer)
        given = (*product, *norms, batch.slots, q, *place)
        hashing = cache.hashing
        if hashing is None or not heads or heads // kv_heads * cache.shape.dim > MOST_VALUES:
            self.launch("rotate_and_store", grid, 256, *given, *posting)
            return
        numbers = (None, None, i32(layer), i32(cache.shape.layers))
        self.launch("rotate_and_hash", grid, 256, *given, *numbers, hashing.keys, hashing.sums, hashing.rows)

    def _attend(
        self,
        q: torch.Tensor,
        out: torch.Tensor,
        padded: int,
        batch: Batch,
        angles: Angles | None,
        cache: GpuCache,
        layer: int,
        heads: int,
        scale: float,
        window: int,
    ) -> None:
        kv_heads, dim, tiles = cache.shape.kv_heads, cache.shape.dim, len(batch.tile_row)
        self.suit(dim)
        if heads % kv_heads or heads // kv_heads > QUERIES:
            raise unsuited(f"A layer of {heads} heads over {kv_heads}")
        groups = max(SEGMENTS, -(-batch.tables.shape[1] * BLOCK_TOKENS // GROUP_TOKENS) + SEGMENTS - 1)
        asking = self._asking
        if asking is not None and tiles != len(batch.span):
            raise ValueError("only rows of one token each can ask another process")
        apart = asking is None and groups > SEGMENTS and tiles * kv_heads < 2 * self.processors
        groups = groups if asking is None else BEFORE_AND_AFTER
        kept = apart or asking is not None
        parts = self._room_for_parts(tiles * kv_heads * groups * QUERIES * (dim + PART)) if kept else None
        arguments: tuple[program.Argument, ...] = (
            *(q, cache.layer(layer), batch.span, batch.positions, batch.tile_row, batch.tile_rows, batch.tables),
            *(batch.segments, batch.counts, None if angles is None else angles.rotation_cosine),
            *(None if angles is None else angles.rotation_sine, parts, out, cache.block_stride),
            *map(i32, (batch.tables.shape[1], padded, heads, kv_heads, window, groups)),
            np.float32(scale * math.log2(math.e)),
        )
        queries = heads // kv_heads if tiles == len(batch.span) else QUERIES
        held = next(held for held in (1, 2, 4) if queries * dim <= held * 4 * 128)
        self.launch(f"attend_{held}", (tiles, kv_heads, groups if apart else 1), 128, *arguments)
        if asking is not None:
            self.launch("merge_with_vaults", (tiles, kv_heads), 128, *arguments, *asking.gathering(layer))
        elif apart:
            self.launch("merge_groups", (tiles, kv_heads), 128, *arguments)

    def _room_for_parts(self, values: int) -> torch.Tensor:
        size = 1 << (values - 1).bit_length()
        if size not in self._parts:
            self._parts[size] = torch.zeros(size, device="cuda")
        return self._parts[size]

    def suit(self, dim: int) -> None:
        if dim not in DIMS:
            raise unsuited(f"A head of {dim}")
        self._program = program.program(dim)

    @property
    def processors(self) -> int:
        assert self._program is not None
        return self._program.processors

    def _on_gpu(self, batch: Batch, cache: KVCache) -> Batch:
        """Checked once: no row can reach outside the cache."""
        if batch.positions.is_cuda:
            return batch
        if self._prepared is None or self._prepared[0] is not batch:
            self._prepared = (batch, on_device(batch, cache))
        return self._prepared[1]
