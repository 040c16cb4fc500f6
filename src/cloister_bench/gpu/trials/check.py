"""Every kernel against float64, and bit for bit at other numbers of rows, chunks and splits. `partition`: `open` and
`partitioned` have the same bits, with attention processes under MPS, also beside a vault that does not answer."""

import argparse
import faulthandler
import time
from collections.abc import Callable
from typing import Any

import torch

from cloister.compute.gpu.device import GpuDevice
from cloister.compute.gpu.find import fetch
from cloister_bench.gpu.attention import AttentionProcesses
from cloister_bench.gpu.checks import check_attention, check_linear, check_norm_and_embedding
from cloister_bench.gpu.model import random_decoder
from cloister_bench.gpu.mps import mps
from cloister_bench.gpu.steps import measure_steps

MOST_ERROR = 5e-3
Row = dict[str, Any]
Note = Callable[[str, Any], None]


def check(options: argparse.Namespace, note: Note) -> None:
    device = GpuDevice()
    device.open()
    torch.manual_seed(int(time.time()))
    note("torch", str(torch.__version__))
    note("gpu", torch.cuda.get_device_name())
    linear, linear_differs = check_linear(device)
    attention, attention_differs = check_attention(device)
    errors = {**linear, **check_norm_and_embedding(device), **attention}
    found = {"errors": errors, "worst": max(errors.values())}
    found["wrong"] = [name for name, each in errors.items() if not each < MOST_ERROR]
    note("checks", {**found, "other_bits": linear_differs + attention_differs})


SILENT = 6  # users of the case in which the last one's vault does not answer
CASES = ((1, 64), (8, 64), (32, 64), (64, 64), (64, 700), (SILENT, 64))
ATTENTION = (1, 8)  # processes, no more than users
WATCHDOG_S = 120


def partition(options: argparse.Namespace, note: Note) -> None:
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    with mps() as there:
        if not there:
            raise SystemExit("NVIDIA's MPS is not there.")
        fetch()
        _partition(note)
        faulthandler.cancel_dump_traceback_later()


def _partition(note: Note) -> None:
    by_users = {users: {min(users, count) for count in ATTENTION if count <= users or count == 8} for users, _ in CASES}
    processes = AttentionProcesses(set.union(*by_users.values()))  # before the GPU is open
    decoder = random_decoder()
    found: list[Row] = []
    for users, prompt in CASES:
        settings, silent = sorted(by_users[users]), users == SILENT
        for row in measure_steps(decoder, processes, users, prompt, settings, silent=silent):
            found.append({"users": users, "prompt": prompt, "silent": silent, **row})
            note("partition", found)
