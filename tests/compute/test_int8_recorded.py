"""What a small model answers with int8 weights: recorded on x86-64, and the same on every processor."""

from __future__ import annotations

import hashlib
import math

import pytest
import torch

from cloister.compute.base import Device
from cloister.compute.cpu.library import find_compiler
from cloister.compute.cpu.native import CpuDevice, NativeKernels
from cloister.compute.layout import Chunk, lay_out
from cloister.compute.reference import ReferenceDevice, ReferenceKernels
from cloister.models.decoder import RawParts
from cloister.models.fused import FusedDecoder
from tests.models.small_llama import llama_config, llama_weights

PROMPT = [(7 * at * at + 3) % 96 for at in range(21)]
RECORDED = [4, 4, 4, 4, 4, 66, 72, 79, 66, 64, 61, 66, 74, 79, 31, 20, 95, 54, 48, 88, 4, 86, 60, 75]
DIGEST = "751af1539e67585b4b75a1b1437a035ea2f10eef987ed1f32edb7881405dbecf"  # of the logits' bytes, with the prompt's


def drawn(shape: torch.Size, seed: int) -> torch.Tensor:
    """Between -1 and 1, from integers alone: torch's own draws differ between processors."""
    x = torch.arange(shape.numel()) + seed * 1_000_003
    for factor in (0x85EBCA6B, 0xC2B2AE35):
        x = (x ^ (x >> 15)) * factor % 2**32
    return ((x ^ (x >> 16)) % 2**20 - 2**19).float().view(shape) / 2**19


def turn_exactly(decoder: FusedDecoder) -> None:
    """Angles rounded from double precision: torch's sines of floats differ in their last bits between processors."""
    angles = [[at / 10000 ** (dim % 8 / 8) for dim in range(16)] for at in range(64)]
    rotary = decoder._rotary
    rotary._cosine, rotary._sine = (
        torch.tensor([[of(x) for x in row] for row in angles]) for of in (math.cos, math.sin)
    )
    rotary._rotation_cosine, rotary._rotation_sine = rotary._cosine, rotary._sine


def answer_of(device: Device) -> tuple[list[int], str]:
    config = llama_config(96, 64, 4, 2, tied=True)
    weights = {}
    for seed, (name, old) in enumerate(llama_weights(config).items()):
        new = drawn(old.shape, seed)
        weights[name] = 1 + new * 0.1 if old.dim() == 1 else new * 0.3
    del weights["lm_head.weight"]
    decoder = FusedDecoder(config, RawParts(weights, device.kernels), device, 64)
    turn_exactly(decoder)
    cache, tokens = device.cache(decoder.cache_shape, 4), list(PROMPT)
    digest, chunk, answer = hashlib.sha256(), tokens, []
    for _ in range(24):
        batch = lay_out([Chunk(chunk, len(tokens) - len(chunk), range(4))], decoder.queries_per_kv_head)
        logits = decoder.logits(decoder.hidden(batch, cache))
        digest.update(logits.numpy().tobytes())
        answer.append(int(logits[-1].argmax()))
        tokens.append(answer[-1])
        chunk = tokens[-1:]
    return answer, digest.hexdigest()


def test_the_answer_is_the_recorded_one() -> None:
    if find_compiler() is None:
        pytest.skip("no C compiler on this machine")
    assert answer_of(CpuDevice(NativeKernels(torch.bfloat16, threads=2, int8=True))) == (RECORDED, DIGEST)


def test_the_references_answer_has_the_same_tokens() -> None:
    assert answer_of(ReferenceDevice(ReferenceKernels(torch.bfloat16, int8=True)))[0] == RECORDED
