"""Steps and whole requests at `open` and `partitioned`, and steps of `obfuscated`: how long they take, and whether bits
and tokens are those of `open`. The last user's vault does not answer in one case: the others' bits do not change."""

import argparse
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from cloister.compute.gpu.find import fetch
from cloister.models.fused import FusedDecoder
from cloister_bench.gpu.attention import AttentionProcesses, partitioned
from cloister_bench.gpu.model import DEFAULT_PROCESSES, random_decoder
from cloister_bench.gpu.mps import mps
from cloister_bench.gpu.requests import measure_requests
from cloister_bench.gpu.steps import bandwidth, measure_steps, measure_variants

SILENT = 6  # users of the case in which the last one's vault does not answer
STEPS = [*((users, prompt) for prompt in (64, 2048) for users in (1, 8, 32, 64)), (64, 700), (SILENT, 64)]
REQUESTS = ((32, 64, 64), (32, 512, 128), (8, 64, 64))  # users, tokens of prompt and answer
LAMBDAS = {8: (8,), 1: (8, 64)}  # by users
Row = dict[str, Any]
Note = Callable[[str, Any], None]


@contextmanager
def _opened() -> Iterator[tuple[FusedDecoder, AttentionProcesses]]:
    with mps() as there:
        if not there:
            raise SystemExit("NVIDIA's MPS is not there.")
        fetch()
        gc.disable()  # a recorded graph that is freed while another is recorded spoils that: each case collects
        processes = AttentionProcesses([1, SILENT, DEFAULT_PROCESSES])  # before the GPU is open
        decoder = random_decoder()
        if why := decoder.device.partition_refusal(decoder):
            raise SystemExit(why)
        yield decoder, processes


def _settings(users: int) -> list[int]:
    return list(dict.fromkeys((min(users, DEFAULT_PROCESSES), 1)))


def _noted(name: str, cases: Iterator[tuple[Row, Iterator[Row]]], note: Note) -> None:
    found: list[Row] = []
    for about, rows in cases:
        gc.collect()
        torch.cuda.empty_cache()
        for row in rows:
            found.append({**about, **row})
            note(name, found)


def steps(options: argparse.Namespace, note: Note) -> None:
    with _opened() as given:
        note("gpu", torch.cuda.get_device_name())
        note("torch", str(torch.__version__))
        note("bytes_per_second", bandwidth())
        cases = (
            (
                {"users": users, "prompt": prompt, "silent": users == SILENT},
                measure_steps(*given, users, prompt, _settings(users), silent=users == SILENT),
            )
            for users, prompt in STEPS
        )
        _noted("steps", cases, note)


def requests(options: argparse.Namespace, note: Note) -> None:
    with _opened() as (decoder, processes):
        behind = partial(partitioned, processes, decoder)
        cases = (
            (
                {"users": users, "prompt": prompt},
                measure_requests(decoder, behind, users, prompt, answer, _settings(users)),
            )
            for users, prompt, answer in REQUESTS
        )
        _noted("requests", cases, note)


def obfuscated(options: argparse.Namespace, note: Note) -> None:
    with _opened() as given:
        cases = (
            ({"users": users, "prompt": 64}, measure_variants(*given, _settings(users)[0], users, 64, lambdas))
            for users, lambdas in LAMBDAS.items()
        )
        _noted("obfuscated", cases, note)
