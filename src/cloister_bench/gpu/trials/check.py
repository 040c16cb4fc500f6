"""Every kernel against float64, and bit for bit at other numbers of rows, chunks and splits."""

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

from cloister.compute.gpu.device import GpuDevice
from cloister_bench.gpu.checks import check_attention, check_linear, check_norm_and_embedding

MOST_ERROR = 5e-3


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
