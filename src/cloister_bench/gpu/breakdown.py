"""Where a step's time goes: each kernel alone, over all layers in one graph."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from cloister.compute.gpu.cache import on_gpu
from cloister.compute.gpu.kernels import GpuKernels
from cloister.compute.layer import Layer
from cloister.compute.layout import Chunk, Layout, Wanted, lay_out
from cloister.engine.graph_runner import Bucket
from cloister.levels import OPEN, PARTITIONED
from cloister.models.fused import FusedDecoder
from cloister_bench.gpu.attention import AttentionProcesses
from cloister_bench.gpu.results import phases
from cloister_bench.gpu.steps import graphed, greatest, measure_steps, median_ms

Row = dict[str, Any]
PRODUCTS = ("qkv", "out", "gate_up", "down")
ROOM = 8


def _kernels(decoder: FusedDecoder) -> GpuKernels:
    assert isinstance(decoder.kernels, GpuKernels)
    return decoder.kernels


def products_us(decoder: FusedDecoder, users: int) -> dict[str, float]:
    layers, kernels = decoder._layers, _kernels(decoder)
    padded, times = max(8, users), {}
    for name in PRODUCTS:
        weights = [getattr(layer, name) for layer in layers]
        x = torch.randn(padded * weights[0].k, device="cuda").bfloat16()
        space = kernels.workspace(layers[0], users)

        def run(weights: list[Any] = weights, x: torch.Tensor = x, space: Any = space) -> None:
            for packed in weights:
                gated = space.gated if packed.gate else None
                kernels._product(x, packed, padded, None if packed.gate else space.sums, gated)

        times[name] = median_ms(graphed(run), 3, 10) * 1e3 / len(weights)
    return times


def small_us(decoder: FusedDecoder, users: int, prompt: int = 64, answered: int = 16) -> dict[str, float]:
    """Of what is no product, in a layer; of `head` and `greatest`, in a step."""
    kernels, layers = _kernels(decoder), decoder._layers
    each = -(-prompt // 16) + ROOM
    cache = on_gpu(decoder.device.cache(decoder.cache_shape, users * each))
    layout = Layout(prompt=prompt, origin=prompt)
    chunks = [
        Chunk([7], prompt + answered, range(user * each, (user + 1) * each), layout, Wanted.LAST)
        for user in range(users)
    ]
    bucket = Bucket(users, max(32, each), decoder.device.place)
    bucket.fill(lay_out(chunks, decoder.queries_per_kv_head))
    batch, shape, padded = bucket.batch, layers[0].shape, max(8, users)
    space, angles = kernels.workspace(layers[0], users), decoder._rotary.at(batch.positions, batch.rotations)
    x = torch.randn(users, layers[0].qkv.k, device="cuda")
    products = ((space.gated, layers[0].down), (space.normed, layers[0].qkv))
    sums = [kernels._product(rows, packed, padded, space.sums) for rows, packed in products]
    norms = (None, None, np.float32(1e-5), angles.cosine, angles.sine)
    runs: dict[str, Callable[[Layer], object]] = {
        "norm": lambda layer: kernels._norm(
            x, sums[0], users, layer.qkv.k, padded, layer.mlp_norm, shape.epsilon, space.normed
        ),
        "rotate": lambda layer: kernels._rotate(
            sums[1], users, padded, norms, batch, space.q, cache, layer.index, shape.heads
        ),
        "attend": lambda layer: kernels._attend(
            space.q, space.attended, padded, batch, angles, cache, layer.index, shape.heads, shape.scale, 0
        ),
    }
    times = {}
    for name, run in runs.items():

        def all_layers(run: Callable[[Layer], object] = run) -> list[object]:
            return [run(layer) for layer in layers]

        times[name] = median_ms(graphed(all_layers), 3, 10) * 1e3 / len(layers)
    logits = torch.randn(users, decoder.vocabulary, device="cuda")
    times["greatest"] = median_ms(graphed(lambda: greatest(kernels, logits)), 3, 10) * 1e3
    hidden = torch.randn(users, layers[0].qkv.k, device="cuda")
    times["head"] = median_ms(graphed(lambda: decoder.logits(hidden)), 3, 10) * 1e3
    return times


def measure_breakdown(
    decoder: FusedDecoder, processes: AttentionProcesses, users: int, prompt: int, settings: list[int]
) -> Iterator[Row]:
    products = products_us(decoder, users)
    shape = decoder._layers[0].shape
    queries, layers = shape.heads / (shape.heads + 2 * shape.kv_heads), len(decoder._layers)
    at_open = products | small_us(decoder, users, prompt)
    at_service = products | small_us(decoder, users, 0)
    for row in measure_steps(decoder, processes, users, prompt, settings, isolated=False):
        if row.get("design") in (OPEN, PARTITIONED):
            asks = row["design"] == PARTITIONED
            us = at_service if asks else at_open
            parts = phases(us, layers, queries, row["ms"], asks=asks)
            yield {**row, "phases_ms": parts, "kernels_us": us}
