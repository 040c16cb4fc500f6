from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from cloister.compute.base import CacheShape, Device, Kernels, KVCache, Step
from cloister.compute.host_cache import HostCache, on_host
from cloister.compute.layer import GATE_ROWS, Gate, Layer, Packed, quantised, quantised_rows
from cloister.compute.layout import BLOCK_TOKENS, Batch


@dataclass(frozen=True, slots=True)
class Part:
    """A = softmax(q·Kᵀ)·V, m = max(q·Kᵀ) and γ = Σ exp(q·Kᵀ - m) in one segment. γ = 0 where a query sees nothing."""

    attended: torch.Tensor
    top: torch.Tensor
    total: torch.Tensor


def part_of(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Part:
    """Of scaled queries [kv heads, queries, dim] over keys and values [kv heads, positions, dim]."""
    if keys.shape[1] == 0:
        none = q.new_zeros(q.shape[:2])
        return Part(torch.zeros_like(q), none, none)
    scores = q @ keys.transpose(1, 2)
    top = scores.amax(-1)
    weights = (scores - top[..., None]).exp()
    total = weights.sum(-1)
    return Part(weights @ values / total[..., None], top, total)


def merged(parts: Sequence[Part]) -> torch.Tensor:
    """Petridish's merge for any number of segments; the largest m is subtracted: no exponential overflows."""
    if len(parts) == 1:
        return parts[0].attended
    totals = torch.stack([part.total for part in parts])
    tops = torch.stack([part.top for part in parts]).masked_fill(totals == 0, -torch.inf)
    weights = totals * (tops - tops.amax(0)).exp()
    shares = weights / weights.sum(0)
    whole = torch.zeros_like(parts[0].attended)
    for part, share in zip(parts, shares, strict=True):
        whole += part.attended * share[..., None]
    return whole


def _active(row: torch.Tensor, gate: Gate) -> torch.Tensor:
    return functional.silu(row) if gate == "silu" else functional.gelu(row, approximate="tanh")


class ReferenceKernels(Kernels):
    name = "reference"

    def __init__(self, dtype: torch.dtype, *, int8: bool = False) -> None:
        self.dtype = dtype
        self._int8 = int8

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None, gate: Gate | None = None) -> Packed:
        columns, k = weight.shape
        data, scale = quantised(weight) if self._int8 else (weight.to(self.dtype).contiguous(), None)
        return Packed(data, columns, k, None if bias is None else bias.float(), gate, scale)

    def embed(self, packed: Packed, tokens: torch.Tensor) -> torch.Tensor:
        rows = packed.data[tokens].float()
        return rows if packed.scale is None else rows * packed.scale[tokens, None]

    def linear(self, x: torch.Tensor, packed: Packed, add_to: torch.Tensor | None = None) -> torch.Tensor:
        out = self._product(x, packed)
        out = out if packed.bias is None else out + packed.bias
        if packed.gate:
            halves = out.view(len(out), -1, 2, GATE_ROWS)
            gate, up = (halves[:, :, side].reshape(len(out), -1) for side in (0, 1))
            # Row by row: torch computes the last few values of a tensor otherwise than the others.
            out = torch.stack([_active(row, packed.gate) for row in gate]) * up
        return out if add_to is None else add_to.add_(out)

    def _product(self, x: torch.Tensor, packed: Packed) -> torch.Tensor:
        if packed.scale is not None:
            values, scale = quantised_rows(x.float())
            high = torch.floor((values + 128) / 256)
            both = (high, values - 256 * high)
            high, low = ((half.double() @ packed.data.double().T).int().float() for half in both)  # exact: below 2^31
            return (high * 256 + low) * (packed.scale * scale)
        weight = packed.data.float()
        rows = [functional.linear(row, weight) for row in x.to(self.dtype).float()]
        return torch.stack(rows) if rows else x.new_zeros(0, packed.columns)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * weight

    def store(self, keys: torch.Tensor, values: torch.Tensor, layer: int, batch: Batch, cache: KVCache) -> None:
        blocks, lanes, held = batch.slots // BLOCK_TOKENS, batch.slots % BLOCK_TOKENS, on_host(cache)
        held.keys(layer)[blocks, :, :, lanes] = keys.to(cache.dtype)
        held.values(layer)[blocks, :, lanes] = values.to(cache.dtype)

    def attention(self, q: torch.Tensor, layer: int, step: Step, scale: float, window: int = 0) -> torch.Tensor:
        if step.batch.remotes:
            raise ValueError("the reference kernels reach no vault")
        rows = [parts_of(q[row], row, layer, step, scale, window) for row in range(len(q))]
        return torch.stack([merged(parts).reshape(-1) for parts in rows])

    def run_layers(self, layers: Sequence[Layer], x: torch.Tensor, step: Step) -> None:
        for layer in layers:
            shape, q = layer.shape, self._queries(layer, x, step)
            attended = self.attention(q, layer.index, step, shape.scale, shape.window)
            self.linear(attended, layer.out, add_to=x)
            gated = self.linear(self.rms_norm(x, layer.mlp_norm, shape.epsilon), layer.gate_up)
            self.linear(gated, layer.down, add_to=x)

    def _queries(self, layer: Layer, x: torch.Tensor, step: Step) -> torch.Tensor:
        shape = layer.shape
        projected = self.linear(self.rms_norm(x, layer.attention_norm, shape.epsilon), layer.qkv)
        heads = projected.view(len(x), -1, shape.dim)
        q, keys, values = torch.split(heads, [shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, keys = self.rms_norm(q, layer.q_norm, shape.epsilon), self.rms_norm(keys, layer.k_norm, shape.epsilon)
        assert step.angles is not None
        cosine, sine = step.angles.cosine, step.angles.sine
        self.store(_rotated(keys, cosine, sine), values, layer.index, step.batch, step.cache)
        return _rotated(q, cosine, sine)


class ReferenceDevice(Device):
    """It has no links: prompts are served whole."""

    def __init__(self, kernels: ReferenceKernels) -> None:
        self.kernels = kernels

    def cache(self, shape: CacheShape, blocks: int) -> HostCache:
        return HostCache(shape, blocks, self.kernels.dtype)


def parts_of(q: torch.Tensor, row: int, layer: int, step: Step, scale: float, window: int) -> list[Part]:
    batch, angles = step.batch, step.angles
    span, position = int(batch.span[row]), int(batch.positions[row])
    parts = []
    for first, length, shift, rotated in batch.segments[span, : int(batch.counts[span])].tolist():
        query = q
        if rotated:
            assert angles is not None
            query = rotated_on(q, angles.rotation_cosine[span], angles.rotation_sine[span])
        table = batch.tables[span, first:]
        parts.append(part_in(query * scale, layer, table, length, position + shift, step.cache, window))
    return parts


def part_in(
    q: torch.Tensor, layer: int, table: torch.Tensor, length: int, place: int, cache: KVCache, window: int = 0
) -> Part:
    """Of scaled queries [heads, dim] in a segment of `length` positions in the table's blocks."""
    held, (heads, dim), kv_heads = on_host(cache), q.shape, cache.shape.kv_heads
    end = min(place + 1, length)
    blocks = table[: -(-end // BLOCK_TOKENS)].long()
    keys = held.keys(layer)[blocks].float().permute(1, 0, 3, 2).reshape(kv_heads, -1, dim)
    values = held.values(layer)[blocks].float().permute(1, 0, 2, 3).reshape(kv_heads, -1, dim)
    seen = slice(max(0, place - window + 1) if window else 0, end)
    return part_of(q.view(kv_heads, heads // kv_heads, dim), keys[:, seen], values[:, seen])


def rotated_on(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    return _rotated(heads[None], cosine[None], sine[None])[0]


def _rotated(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding over the first `rotary` dimensions, halves rotated against each other."""
    rotary = cosine.shape[-1]
    moving, still = heads[..., :rotary], heads[..., rotary:]
    left, right = moving.chunk(2, dim=-1)
    rotated = moving * cosine[:, None] + torch.cat((-right, left), dim=-1) * sine[:, None]
    return torch.cat((rotated, still), dim=-1)
