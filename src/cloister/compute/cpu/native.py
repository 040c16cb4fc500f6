"""The CPU behind the contract. Pointers go to C from tensors checked here for dtype, contiguity and size."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from ctypes import CDLL, POINTER, Array, byref, c_uint64, pointer
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from cloister.compute.base import PHASES, AttentionShape, CacheShape, Device, Kernels, KVCache, Step
from cloister.compute.cpu import library as c
from cloister.compute.cpu.link import CpuAnswerer, CpuAsker
from cloister.compute.cpu.start import Starting
from cloister.compute.host_cache import HostCache, on_host
from cloister.compute.layer import Angles, Beginning, DrawRows, Draws, Gate, Layer, MaskRow, Packed, quantised
from cloister.compute.layout import QUERIES_PER_TILE, Batch, tiles_of
from cloister.cores import usable_cores
from cloister.errors import ModelUnsupported, SetupError
from cloister.link.memory import LinkShape

PANEL = 32
LANES = 16
DEPTH = 64
MAX_INT8_K = 1 << 17  # a sum of 128 · 127 as often is below 2^31
MASKED = 64  # tokens of a word of a mask
MAX_DIM = 256
MAX_QUERIES = 128
MAX_CORES = 256
TILES_PER_CORE = 4  # at least, counted for each KV head, so that the cores end at about the same time
FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
PLAIN, ADD = 0, 1
Pointer = POINTER(c.LayerStruct)
_Owner = TypeVar("_Owner")
_Made = TypeVar("_Made")
GATES: dict[Gate | None, int] = {None: PLAIN, "silu": 2, "gelu_tanh": 3}


def _up_to(n: int, step: int) -> int:
    return -(-n // step) * step


class NativeKernels(Kernels):
    """One caller at a time: the team of threads works on one job at once."""

    shows_queries = True
    takes_starts = True

    def __init__(self, dtype: torch.dtype, threads: int = 0, *, tiles: bool = True, int8: bool = False) -> None:
        self.dtype = dtype
        self._int8 = int8
        self.library: CDLL = c.load_library(threads, tiles=tiles)
        self._bf16 = int(dtype == torch.bfloat16)
        self._structs: dict[int, tuple[object, Any]] = {}
        self._space = c.WorkspaceStruct()
        self._buffers: dict[str, torch.Tensor] = {}
        self._attention = c.AttentionStruct()
        self._prepared: tuple[Batch, HostCache] | None = None
        self._tiling: tuple[torch.Tensor, torch.Tensor] | None = None
        self._cores = MAX_CORES
        self._asked: c.AskingStruct | None = None
        self._remote = torch.empty(0, dtype=torch.int32)
        self._phases = (c_uint64 * len(PHASES))()
        self._watched: tuple[Collection[int], Callable[[int, torch.Tensor], None]] | None = None
        # int8 weights are packed the same way for all processors, and have one digest.
        self.name = "native-int8" if int8 else f"native-{self.library.cloister_bf16_with().decode()}"

    @contextmanager
    def watching(self, layers: Collection[int], take: Callable[[int, torch.Tensor], None]) -> Iterator[None]:
        self._watched = layers, take
        try:
            yield
        finally:
            self._watched = None

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None, gate: Gate | None = None) -> Packed:
        columns, k = weight.shape
        if gate and columns % PANEL:
            raise ModelUnsupported(f"A gated layer of {columns} columns is not a multiple of {PANEL}.")
        if self._int8 and k > MAX_INT8_K:
            raise ModelUnsupported(f"A layer of {k} inputs is too wide for int8.", hint="Leave out --weights int8.")
        weight, scale = quantised(weight) if self._int8 else (weight.to(self.dtype), None)
        weight, width = weight.contiguous(), _up_to(columns, PANEL)
        padded = _up_to(k, DEPTH if self._int8 else PANEL if self._bf16 else 1)
        data = torch.empty(width * padded, dtype=weight.dtype)
        self.library.cloister_pack(weight.data_ptr(), FORMATS[weight.dtype], columns, k, data.data_ptr())
        return Packed(data, columns, k, _padded(bias, width), gate, _padded(scale, width))

    def embed(self, packed: Packed, tokens: torch.Tensor) -> torch.Tensor:
        out = torch.empty(len(tokens), packed.k)
        if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < packed.columns:
            raise IndexError("a token id is outside the vocabulary")
        struct = self._kept(packed, _packed_struct)
        self.library.cloister_embed(byref(struct), tokens.data_ptr(), len(tokens), out.data_ptr())
        return out

    def linear(self, x: torch.Tensor, packed: Packed, add_to: torch.Tensor | None = None) -> torch.Tensor:
        if x.dim() != 2 or x.shape[1] != packed.k:
            raise ValueError(f"rows of {tuple(x.shape)} do not suit a weight of k={packed.k}")
        x, rows = x.float().contiguous(), len(x)
        if add_to is not None:
            whole = add_to.is_contiguous() and add_to.dtype == torch.float32
            if packed.gate or not whole or add_to.shape != (rows, packed.width):
                raise ValueError("the sum's target has another shape than the product")
        out = torch.empty(rows, packed.width) if add_to is None else add_to
        mode = GATES[packed.gate] if add_to is None else ADD
        tiles = self._tiles(rows, packed.k)
        self.library.cloister_linear(
            x.data_ptr(), rows, byref(self._kept(packed, _packed_struct)), mode, out.data_ptr(), packed.width, tiles
        )
        return out

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        width = x.shape[-1]
        if width % LANES or len(weight) != width or weight.dtype != torch.float32:
            raise ModelUnsupported(f"A norm over {width} values is not a multiple of {LANES}.")
        x = x.float().contiguous()
        rows = x.numel() // width
        out = torch.empty_like(x)
        self.library.cloister_rms_norm(
            x.data_ptr(), width, rows, 1, width, weight.data_ptr(), epsilon, out.data_ptr(), width
        )
        return out

    def store(self, keys: torch.Tensor, values: torch.Tensor, layer: int, batch: Batch, cache: KVCache) -> None:
        rows, kv_heads, dim = keys.shape
        width = kv_heads * dim
        both = torch.cat((keys.reshape(rows, width), values.reshape(rows, width)), dim=1).float().contiguous()
        held = self._prepare(batch, cache, rows, dim)
        start = both.data_ptr()
        into = (held.keys(layer).data_ptr(), held.values(layer).data_ptr(), self._bf16)
        slots = batch.slots.data_ptr()
        self.library.cloister_rotate_and_store(
            start, start, start + 4 * width, 2 * width, rows, 0, kv_heads, dim, 0, None, None, slots, *into, held.block
        )

    def start_team(self, threads: int) -> int:
        return int(self.library.cloister_start(threads or usable_cores()))

    def use_cores(self, cores: int) -> None:
        self._cores = cores
        self.library.cloister_use(cores)

    def take_short_turns(self) -> None:
        self.library.cloister_take_short_turns()

    def drop_scratch(self) -> None:
        self._buffers.clear()
        self._space = c.WorkspaceStruct()
        self._prepared = self._asked = None

    @torch.inference_mode()  # where the hooked decoder made the buffers: torch changes those nowhere else
    def forget(self) -> None:
        """The scratch, and the last batch, which holds its tokens."""
        for buffer in self._buffers.values():
            buffer.zero_()
        self._prepared = self._asked = None

    @property
    def seconds(self) -> dict[str, float]:
        return {name: ns / 1e9 for name, ns in zip(PHASES, self._phases, strict=True)}

    def attention(self, q: torch.Tensor, layer: int, step: Step, scale: float, window: int = 0) -> torch.Tensor:
        rows, heads, dim = q.shape
        if q.stride()[1:] != (dim, 1) or q.dtype != torch.float32:
            q = q.float().contiguous()
        held = self._prepare(step.batch, step.cache, rows, dim)
        job = self._attention_over(heads, step.angles)
        out = self._buffer("attended", rows, heads * dim)
        job.q, job.q_stride, job.out = q.data_ptr(), q.stride(0), out.data_ptr()
        job.keys, job.values = held.keys(layer).data_ptr(), held.values(layer).data_ptr()
        job.scale, job.window = scale, window
        self.library.cloister_attention(byref(job), self._asking(step), layer)
        if self._watched is not None and layer in self._watched[0]:
            self._watched[1](layer, q)
        return out

    def run_layers(self, layers: Sequence[Layer], x: torch.Tensor, step: Step) -> None:
        shape, rows, angles = layers[0].shape, len(x), step.angles
        assert angles is not None
        held = self._prepare(step.batch, step.cache, rows, shape.dim)
        self._grow(layers[0], rows)
        job = self._attention_over(shape.heads, angles)
        job.q, job.q_stride = self._space.qkv, layers[0].qkv.columns
        job.out = self._buffer("attended", rows, shape.heads * shape.dim).data_ptr()
        job.keys, job.values = held.keys(0).data_ptr(), held.values(0).data_ptr()
        stack = self._kept(layers, self._stack)
        cosine, sine = angles.cosine.data_ptr(), angles.sine.data_ptr()
        watched, take = self._watched or ((), None)
        ends = [at for at, layer in enumerate(layers, 1) if layer.index in watched] if watched else []
        for start, end in pairwise(sorted({0, *ends, len(layers)})):
            part = (Pointer * (end - start))(*stack[start:end]) if ends else stack
            self.library.cloister_run_layers(
                *(part, end - start, byref(self._space), x.data_ptr(), rows, cosine, sine),
                *(step.batch.slots.data_ptr(), byref(job), held.bytes_per_layer, self._asking(step), self._phases),
            )
            if take is not None and end in ends:
                queries = self._buffer("qkv", rows, layers[0].qkv.columns)[:, : shape.heads * shape.dim]
                take(layers[end - 1].index, queries.view(rows, shape.heads, shape.dim))

    def take_starts(self, x: torch.Tensor, step: Step) -> None:
        rows, width = x.shape
        self._prepare(step.batch, step.cache, rows, step.cache.shape.dim)
        self.library.cloister_take_starts(self._asking(step), step.batch.tokens.data_ptr(), x.data_ptr(), width)

    def described(self, beginning: Beginning) -> tuple[Array[Any], c.PackedStruct]:
        return self._kept(beginning.layers, self._stack), self._kept(beginning.embedding, _packed_struct)

    @property
    def draw_rows(self) -> DrawRows:
        return self.draw

    @property
    def mask_row(self) -> MaskRow:
        return self.mask

    def mask(self, row: torch.Tensor, allowed: NDArray[np.uint8]) -> None:
        if row.dtype != torch.float32 or not row.is_contiguous() or row.dim() != 1 or len(row) % MASKED:
            raise ValueError("logits to mask must be one contiguous row of whole vectors")
        if allowed.dtype != np.uint8 or not allowed.flags.c_contiguous or len(allowed) % 8 or allowed.ctypes.data % 8:
            raise ValueError("a mask must be whole words")
        self.library.cloister_mask(row.data_ptr(), allowed.ctypes.data, len(allowed) // 8, len(row))

    def draw(self, rows: torch.Tensor, how: Draws) -> torch.Tensor:
        """The rows' width is a multiple of the lanes: see draw.h."""
        count, width = rows.shape
        if rows.dtype != torch.float32 or not rows.is_contiguous() or width % LANES:
            raise ValueError("logits to draw from must be contiguous rows of whole vectors")
        numbers = [torch.tensor(values, dtype=torch.float32) for values in (how.temperature, how.min_p)]
        numbers += [torch.tensor(values, dtype=torch.float64) for values in (how.top_p, how.u)]
        numbers.append(torch.tensor(how.top_k, dtype=torch.int64).clamp(1, width))
        tokens = torch.empty(count, dtype=torch.int64)
        if any(len(each) != count for each in numbers):
            raise ValueError("one set of parameters is needed for each row")
        members = self.library.cloister_members()  # another instance may have made the team larger
        scratch = (self._buffer("probabilities", members, width), self._buffer("ranked", members, 2 * width))
        pointers = (each.data_ptr() for each in (rows, *numbers, tokens, *scratch))
        self.library.cloister_draw(byref(c.DrawStruct(*pointers, count, width)))
        return tokens

    def _kept(self, whose: _Owner, make: Callable[[_Owner], _Made]) -> _Made:
        """Made once, and kept with the tensors it points to."""
        if id(whose) not in self._structs:
            self._structs[id(whose)] = (whose, make(whose))
        made: _Made = self._structs[id(whose)][1]
        return made

    def _stack(self, layers: Sequence[Layer]) -> Array[Any]:
        """The layers of one model have the same shapes."""
        widths = {(layer.qkv.columns, layer.qkv.k, layer.out.k, layer.gate_up.width) for layer in layers}
        if len(widths) > 1:
            raise ModelUnsupported("The model's layers differ in shape.")
        return (Pointer * len(layers))(*(pointer(self._kept(layer, self._described)) for layer in layers))

    def _described(self, layer: Layer) -> c.LayerStruct:
        shape, hidden = layer.shape, layer.qkv.k
        norms = (layer.attention_norm, layer.q_norm, layer.k_norm, layer.mlp_norm)
        for norm, width in zip(norms, (hidden, shape.dim, shape.dim, hidden), strict=True):
            if norm is not None and (norm.dtype != torch.float32 or len(norm) != width or width % LANES):
                raise ModelUnsupported(f"A norm of {len(norm)} values does not suit the native kernels.")
        columns = (shape.heads + 2 * shape.kv_heads) * shape.dim
        if shape.dim % LANES or shape.dim > MAX_DIM or layer.qkv.columns != columns:
            raise ModelUnsupported(f"Heads of {shape.dim} do not suit the native kernels.")
        pointers = [None if norm is None else norm.data_ptr() for norm in norms]
        parts = (_packed_struct(part) for part in (layer.qkv, layer.out, layer.gate_up, layer.down))
        sizes = (layer.index, hidden, shape.heads, shape.kv_heads, shape.dim, shape.rotary, shape.window)
        return c.LayerStruct(*pointers, *parts, *sizes, shape.epsilon, shape.scale)

    def _grow(self, layer: Layer, rows: int) -> None:
        space, inner = self._space, layer.gate_up.width
        widest = max(layer.qkv.k, layer.out.k, inner)
        for name, width in (("normed", layer.qkv.k), ("qkv", layer.qkv.columns), ("gated", inner)):
            setattr(space, name, self._buffer(name, rows, width).data_ptr())
        space.tiles = self._tiles(rows, widest)

    def _buffer(self, name: str, rows: int, width: int) -> torch.Tensor:
        """Scratch of rows × width floats that lives until the next call with the same name."""
        held = self._buffers.get(name)
        if held is None or held.numel() < rows * width:
            held = self._buffers[name] = torch.empty(_up_to(rows, LANES) * width)
        return held.as_strided((rows, width), (width, 1))

    def _tiles(self, rows: int, k: int) -> int:
        """Scratch for rows as the products read them: bf16 tiles, four rows side by side, or int8 with its scales."""
        return self._buffer("tiles", _up_to(rows, LANES), _up_to(k, DEPTH)).data_ptr()

    def _prepare(self, batch: Batch, cache: KVCache, rows: int, dim: int) -> HostCache:
        """Check once per batch that no row can reach outside the cache, and describe the batch to C."""
        if self._prepared is not None and self._prepared[0] is batch and self._prepared[1] is cache:
            return self._prepared[1]
        cache = on_host(cache)
        if cache.dtype != self.dtype or cache.shape.dim != dim:
            raise ValueError("the cache has another precision or shape than the kernels")
        if dim % LANES or dim > MAX_DIM:
            raise ModelUnsupported(f"Heads of {dim} do not suit the native kernels.")
        if rows != batch.rows or int(batch.tables.max()) >= cache.blocks or int(batch.tables.min()) < 0:
            raise IndexError("a row or block is outside the batch or the cache")
        job = self._attention
        job.tables, job.table_stride = batch.tables.data_ptr(), batch.tables.shape[1]
        job.span, job.position = batch.span.data_ptr(), batch.positions.data_ptr()
        job.segments, job.counts = batch.segments.data_ptr(), batch.counts.data_ptr()
        job.block = cache.block
        job.kv_heads, job.dim, job.bf16 = cache.shape.kv_heads, dim, self._bf16
        job.remote = job.parts = None
        self._prepared, self._asked, self._tiling = (batch, cache), None, None
        return cache

    def _asking(self, step: Step) -> Any:
        batch = step.batch
        if not batch.remotes:
            return None
        if self._asked is None:
            if not isinstance(step.asker, CpuAsker):
                raise ValueError("rows of the batch need a vault and there is no link")
            self._remote = torch.full((batch.rows,), -1, dtype=torch.int32)
            rows = [row for remote in batch.remotes for row in remote.rows]
            self._remote[rows] = torch.arange(len(rows), dtype=torch.int32)
            self._attention.remote = self._remote.data_ptr()
            self._asked = step.asker.begin(batch.remotes)
        return byref(self._asked)

    def _attention_over(self, heads: int, angles: Angles | None) -> c.AttentionStruct:
        job = self._attention
        assert self._prepared is not None
        batch = self._prepared[0]
        group = heads // job.kv_heads
        if heads % job.kv_heads or group > MAX_QUERIES:
            raise ModelUnsupported(f"{heads} heads over {job.kv_heads} are not supported by the native kernels.")
        if self._tiling is None:
            tiles, lengths = self._tiling = self._tiles_of(batch, group)
            job.tiles, job.tile_row, job.tile_rows = len(tiles), tiles.data_ptr(), lengths.data_ptr()
        job.heads = heads
        if angles is not None:
            job.rotation_cosine, job.rotation_sine = angles.rotation_cosine.data_ptr(), angles.rotation_sine.data_ptr()
            job.rotary = angles.rotation_cosine.shape[1]
        elif bool(batch.rotations.any()):
            raise ValueError("a span is rotated on and no angles are given")
        if batch.remotes:
            asking = sum(len(remote.rows) for remote in batch.remotes)
            job.parts = self._buffer("parts", asking * 2, heads * (job.dim + 2)).data_ptr()
        return job

    def _tiles_of(self, batch: Batch, group: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Long tiles read a long prompt's keys and values a few times only; short ones keep every core busy."""
        if len(batch.tile_row) == batch.rows:
            return batch.tile_row, batch.tile_rows
        cores = min(self._cores, self.library.cloister_members())
        shared = batch.rows * self._attention.kv_heads // (TILES_PER_CORE * cores) if cores > 1 else MAX_QUERIES
        return tiles_of(batch, max(1, QUERIES_PER_TILE // group, min(shared, MAX_QUERIES // group)))


class CpuDevice(Device):
    def __init__(self, kernels: NativeKernels) -> None:
        self.kernels: NativeKernels = kernels

    def cache(self, shape: CacheShape, blocks: int) -> HostCache:
        return HostCache(shape, blocks, self.kernels.dtype)

    def partition_refusal(self, model: AttentionShape) -> str:
        if model.queries_per_kv_head > MAX_QUERIES:
            return f"More than {MAX_QUERIES} query heads share one KV head."
        if len(model.scales) != model.cache_shape.layers:
            return "The scales of the model's attention are not known."
        return ""

    def asker(self, model: AttentionShape, patience_ms: int) -> CpuAsker:
        return CpuAsker(_link_shape(model), patience_ms)

    def answerer(self, model: AttentionShape, cache: KVCache, question: int = -1, answer: int = -1) -> CpuAnswerer:
        if why := self.partition_refusal(model):
            raise SetupError(f"This model's attention cannot be partitioned. {why}")
        made = CpuAnswerer(self.kernels.library, model, on_host(cache), _link_shape(model), question, answer)
        if model.beginning is not None:
            made.compute_first(Starting(model.beginning, *self.kernels.described(model.beginning), on_host(cache)))
        return made


def _link_shape(model: AttentionShape) -> LinkShape:
    return LinkShape(heads=model.heads, dim=model.cache_shape.dim, layers=model.cache_shape.layers)


def _packed_struct(packed: Packed) -> c.PackedStruct:
    bias, scale = (None if each is None else each.data_ptr() for each in (packed.bias, packed.scale))
    sizes = (packed.columns, packed.k, GATES[packed.gate], FORMATS[packed.data.dtype])
    return c.PackedStruct(packed.data.data_ptr(), bias, scale, *sizes)


def _padded(values: torch.Tensor | None, width: int) -> torch.Tensor | None:
    """One float for each packed column, zeros beyond the real ones."""
    return None if values is None else torch.nn.functional.pad(values.float(), (0, width - len(values))).contiguous()
