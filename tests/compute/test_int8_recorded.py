"""What a small model answers with int8 weights, and products' bits: recorded on x86-64 (AVX-512), seen on aarch64 with
and without dot products (under qemu). torch's sines and the logits' last bits differ between the two."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from math import prod

import pytest
import torch

from cloister.compute.base import Device, Kernels
from cloister.compute.cpu.library import find_compiler
from cloister.compute.cpu.native import CpuDevice, NativeKernels
from cloister.compute.layout import Chunk, lay_out
from cloister.compute.reference import ReferenceDevice, ReferenceKernels
from cloister.models.decoder import RawParts
from cloister.models.fused import FusedDecoder
from tests.models.small_llama import llama_config, llama_weights

PROMPT = [(7 * at * at + 3) % 96 for at in range(21)]
RECORDED = [4, 4, 4, 4, 4, 66, 72, 79, 66, 64, 61, 66, 74, 79, 31, 20, 95, 54, 48, 88, 4, 86, 60, 75]
PRODUCTS = "d9aa33b029ff78b758480887283a000a0515c81b386110c81a6524f44c7e633e"


def drawn(shape: Sequence[int], seed: int) -> torch.Tensor:
    """Between -1 and 1, from integers alone: torch's own draws differ between processors."""
    x = torch.arange(prod(shape)) + seed * 1_000_003
    for factor in (0x85EBCA6B, 0xC2B2AE35):
        x = (x ^ (x >> 15)) * factor % 2**32
    return ((x ^ (x >> 16)) % 2**20 - 2**19).float().view(shape) / 2**19


def products_of(kernels: Kernels) -> str:
    digest = hashlib.sha256()
    for rows, columns, k in ((1, 33, 70), (2, 64, 64), (3, 97, 129), (13, 65, 100), (24, 40, 300)):
        x, weight, bias = drawn((rows, k), rows), drawn((columns, k), columns), drawn((columns,), 9)
        x[0, 0] = 100.0
        digest.update(kernels.linear(x, kernels.pack(weight, bias)).numpy().tobytes())
    return digest.hexdigest()


def answer_of(device: Device) -> list[int]:
    config = llama_config(96, 64, 4, 2, tied=True)
    weights = {}
    for seed, (name, old) in enumerate(llama_weights(config).items()):
        new = drawn(old.shape, seed)
        weights[name] = 1 + new * 0.1 if old.dim() == 1 else new * 0.3
    del weights["lm_head.weight"]
    decoder = FusedDecoder(config, RawParts(weights, device.kernels), device, 64)
    cache, tokens = device.cache(decoder.cache_shape, 4), list(PROMPT)
    chunk, answer = tokens, []
    for _ in range(24):
        batch = lay_out([Chunk(chunk, len(tokens) - len(chunk), range(4))], decoder.queries_per_kv_head)
        logits = decoder.logits(decoder.hidden(batch, cache))
        answer.append(int(logits[-1].argmax()))
        tokens.append(answer[-1])
        chunk = tokens[-1:]
    return answer


def test_the_answer_is_the_recorded_one() -> None:
    if find_compiler() is None:
        pytest.skip("no C compiler on this machine")
    assert answer_of(CpuDevice(NativeKernels(torch.bfloat16, threads=2, int8=True))) == RECORDED


def test_the_references_answer_has_the_same_tokens() -> None:
    assert answer_of(ReferenceDevice(ReferenceKernels(torch.bfloat16, int8=True))) == RECORDED


def test_products_are_the_recorded_ones() -> None:
    assert products_of(ReferenceKernels(torch.bfloat16, int8=True)) == PRODUCTS
    if find_compiler() is not None:
        assert products_of(NativeKernels(torch.bfloat16, threads=2, int8=True)) == PRODUCTS
