"""The GPU's kernels against float64, and bit for bit against themselves at other numbers of rows, chunks and splits.
An error is ‖found - right‖ / ‖right‖, where `right` is computed from inputs rounded as the kernels round them."""

import argparse
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch

from cloister.compute.base import CacheShape, Step
from cloister.compute.gpu.device import GpuDevice
from cloister.compute.layer import Angles, Gate, interleave_gate
from cloister.compute.layout import Chunk, Layout, lay_out

WEIGHTS: tuple[tuple[int, int, Gate | None], ...] = (
    (6144, 4096, None),
    (4096, 14336, None),
    (28672, 4096, "silu"),
    (960, 576, None),
    (3072, 576, "gelu_tanh"),
    (49152, 576, None),
    (4136, 1024, None),  # tiles of columns that are odd in number, and one that is not full
    (2112, 576, "silu"),
)
ROWS = (1, 3, 8, 16, 23, 32, 64, 65, 96, 128, 200, 300, 600, 2048)
MOST_ERROR = 5e-3
SHAPES = ((32, 8, 128), (9, 3, 64), (16, 16, 64), (16, 1, 128))


def error(found: torch.Tensor, right: torch.Tensor) -> float:
    if not bool(torch.isfinite(found).all()):
        return float("inf")
    return float((found.double() - right.double()).norm() / right.double().norm())


def _rounded(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16).double()


def check_linear(device: GpuDevice) -> tuple[dict[str, float], list[str]]:
    """Errors; and the numbers of rows at which a row's result has other bits than among 2,048."""
    errors, differing = {}, []
    for columns, k, gate in WEIGHTS:
        weight = torch.randn(columns, k, device="cuda") / k**0.5
        x = torch.randn(max(ROWS), k, device="cuda")
        exact = _rounded(x) @ _rounded(weight).t()
        if gate:
            half = columns // 2
            left, right = exact[:, :half], exact[:, half:]
            active = left * left.sigmoid() if gate == "silu" else torch.nn.functional.gelu(left, approximate="tanh")
            exact = active * right
            weight = interleave_gate(weight[:half], weight[half:])
        packed = device.kernels.pack(weight, None, gate)
        whole = device.kernels.linear(x, packed).clone()
        for rows in ROWS:
            name = f"{columns}x{k}{'-' + gate if gate else ''}, {rows} rows"
            start = max(ROWS) - rows
            found = device.kernels.linear(x[start:], packed)
            errors[name] = error(found, exact[start:])
            if not torch.equal(found, whole[start:]):
                differing.append(name)
        bias = torch.randn(columns, device="cuda")
        if not gate:
            found = device.kernels.linear(
                x[:5], device.kernels.pack(weight, bias), add_to=torch.ones(5, columns, device="cuda")
            )
            errors[f"{columns}x{k} with bias, added"] = error(found, exact[:5] + bias.double() + 1)
    return errors, differing


def check_norm_and_embedding(device: GpuDevice) -> dict[str, float]:
    errors = {}
    for width in (576, 4096, 8192):
        x, weight = torch.randn(37, width, device="cuda"), torch.rand(width, device="cuda") + 0.5
        right = x.double() * torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True) + 1e-5) * weight.double()
        errors[f"norm over {width}"] = error(device.kernels.rms_norm(x, weight, 1e-5), right)
        table = torch.randn(1000, width, device="cuda")
        tokens = torch.randint(0, 1000, (50,))
        found = device.kernels.embed(device.kernels.pack(table), tokens)
        errors[f"embedding of {width}"] = error(found, _rounded(table)[tokens.cuda()])
    return errors


def _rotated(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-right, left), dim=-1) * sine


class _Scene:
    """One sequence; its blocks lie scattered in a cache."""

    def __init__(self, device: GpuDevice, shape: tuple[int, int, int], layout: Layout, tokens: int) -> None:
        self.heads, self.kv_heads, self.dim = shape
        self.device, self.layout, self.tokens = device, layout, tokens
        self.q = torch.randn(tokens, self.heads, self.dim, device="cuda")
        self.keys, self.values = (torch.randn(tokens, self.kv_heads, self.dim, device="cuda") for _ in range(2))
        self.blocks = (torch.randperm(layout.blocks(tokens) + 5) + 2).tolist()
        self.cache = device.cache(CacheShape(2, self.kv_heads, self.dim), len(self.blocks) + 4)
        angle = torch.rand(self.dim // 2, device="cuda") * 6
        self.cosine, self.sine = torch.cat((angle.cos(),) * 2), torch.cat((angle.sin(),) * 2)

    def attended(self, chunks: Sequence[tuple[int, int]], window: int = 0, extra_blocks: int = 0) -> torch.Tensor:
        given = [self.blocks + [0] * extra_blocks] * len(chunks)
        made = [
            Chunk([0] * (end - start), start, blocks, self.layout)
            for (start, end), blocks in zip(chunks, given, strict=True)
        ]
        batch = lay_out(made, self.heads // self.kv_heads)
        rows = torch.cat([torch.arange(start, end) for start, end in chunks]).cuda()
        self.device.kernels.store(self.keys[rows], self.values[rows], 1, batch, self.cache)
        spans = len(batch.counts)
        none = torch.empty(0, device="cuda")
        angles = Angles(
            none, none, self.cosine.expand(spans, -1).contiguous(), self.sine.expand(spans, -1).contiguous()
        )
        step = Step(batch, self.cache, angles)
        return self.device.kernels.attention(self.q[rows], 1, step, self.dim**-0.5, window).clone()

    def right(self, window: int = 0) -> torch.Tensor:
        group, prompt = self.heads // self.kv_heads, self.layout.prompt
        keys, values = (_rounded(x).repeat_interleave(group, dim=1) for x in (self.keys, self.values))
        own, on = _rounded(self.q), _rounded(_rotated(self.q, self.cosine, self.sine))
        at = torch.arange(self.tokens, device="cuda")
        rotated = (self.layout.rotation != 0) & (at[:, None] >= prompt) & (at[None] < prompt)
        scores = torch.einsum("qhd,khd->hqk", own, keys)
        scores = torch.where(rotated, torch.einsum("qhd,khd->hqk", on, keys), scores) * self.dim**-0.5
        hidden = at[None] > at[:, None]
        if window:
            hidden |= at[None] <= at[:, None] - window
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, values).reshape(self.tokens, -1)


def check_attention(device: GpuDevice) -> tuple[dict[str, float], list[str]]:
    """Errors over layouts; and in which ways of cutting the same sequence a row's result has other bits."""
    errors, differing = {}, []
    layouts = {
        "whole": (Layout(prompt=2**30), 700, 0),
        "window": (Layout(prompt=2**30), 700, 300),
        "prompt and answer": (Layout(prompt=333), 600, 0),
        "public, private, answer": (Layout(prompt=530, public=270), 700, 0),
        "rotated on": (Layout(prompt=90, public=40, origin=0, rotation=90), 160, 0),
    }
    for shape in SHAPES:
        for title, (layout, tokens, window) in layouts.items():
            if layout.rotation == 0 and layout.prompt < 2**30:
                layout = Layout(prompt=layout.prompt, public=layout.public, origin=layout.prompt)
            name = f"{title}, {'/'.join(map(str, shape))}"
            scene = _Scene(device, shape, layout, tokens)
            whole = scene.attended([(0, tokens)], window)
            errors[name] = error(whole, scene.right(window))
            cut = [0, 1, 17, tokens // 3, tokens // 2, tokens - 1, tokens]
            chunked = torch.cat([scene.attended([(a, b)], window) for a, b in pairwise(cut)])
            if not torch.equal(chunked, whole):
                differing.append(f"{name}: chunked")
            for row in (0, 15, 16, 64, tokens // 2, tokens - 1):
                if not torch.equal(scene.attended([(row, row + 1)], window)[0], whole[row]):
                    differing.append(f"{name}: row {row} alone")
                if not torch.equal(scene.attended([(row, row + 1)], window, extra_blocks=256)[0], whole[row]):
                    differing.append(f"{name}: row {row} alone, its groups in separate blocks")
    return errors, differing


def check(options: argparse.Namespace, note: Callable[[str, Any], None]) -> None:
    device = GpuDevice()
    device.open()
    torch.manual_seed(int(time.time()))
    linear, linear_differs = check_linear(device)
    attention, attention_differs = check_attention(device)
    errors = {**linear, **check_norm_and_embedding(device), **attention}
    found = {"errors": errors, "worst": max(errors.values())}
    found["wrong"] = [name for name, each in errors.items() if not each < MOST_ERROR]
    note("checks", {**found, "other_bits": linear_differs + attention_differs})
