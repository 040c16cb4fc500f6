"""The GPU's kernels, right or wrong: `cloister bench gpu` times them.

    python -m cloister_bench.gpu.trials.check --json FILE [--partition]

Every kernel against float64, and bit for bit at other numbers of rows, chunks and splits. With `--partition`: `open`
and `partitioned` have the same bits, with attention processes under MPS, also beside a vault that does not answer.
"""

import argparse
import faulthandler
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from cloister.compute.gpu.device import GpuDevice
from cloister.compute.gpu.find import fetch
from cloister_bench.gpu.attention import AttentionProcesses
from cloister_bench.gpu.checks import check_attention, check_linear, check_norm_and_embedding
from cloister_bench.gpu.measurer import random_decoder
from cloister_bench.gpu.mps import mps
from cloister_bench.gpu.shapes import LLAMA_3_8B
from cloister_bench.gpu.steps import measure_steps

MOST_ERROR = 5e-3
Row = dict[str, Any]


def checks(device: GpuDevice) -> Row:
    linear, linear_differs = check_linear(device)
    attention, attention_differs = check_attention(device)
    errors = {**linear, **check_norm_and_embedding(device), **attention}
    return {
        "errors": errors,
        "worst": max(errors.values()),
        "wrong": [name for name, each in errors.items() if not each < MOST_ERROR],
        "other_bits": linear_differs + attention_differs,
    }


SILENT = 6  # users of the case in which the last one's vault does not answer
CASES = ((1, 64), (8, 64), (32, 64), (64, 64), (64, 700), (SILENT, 64))
ATTENTION = (1, 8)  # processes, no more than users
WATCHDOG_S = 120


def partition(found: list[Row], save: Callable[[], None]) -> None:
    by_users = {users: {min(users, count) for count in ATTENTION if count <= users or count == 8} for users, _ in CASES}
    processes = AttentionProcesses(set.union(*by_users.values()))  # before the GPU is open
    decoder = random_decoder(LLAMA_3_8B)
    for users, prompt in CASES:
        settings = sorted(by_users[users])
        steps = measure_steps(decoder, processes, users, prompt, settings, isolated=False, silent=users == SILENT)
        for row in steps:
            found.append({"users": users, "prompt": prompt, "silent": users == SILENT, **row})
            save()
            print(found[-1], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--partition", action="store_true", help="prompts in other processes, under MPS")
    options = parser.parse_args()
    began = time.monotonic()
    found: Row = {"torch": str(torch.__version__)}

    def note(name: str, value: Any) -> None:
        found[name] = value
        found["seconds"] = time.monotonic() - began
        options.json.write_text(json.dumps(found, indent=1))
        print(f"## {name} {found['seconds']:.0f} s", flush=True)

    if options.partition:
        faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
        rows: list[Row] = []
        with mps() as there:
            if not there:
                raise SystemExit("NVIDIA's MPS is not there.")
            fetch()
            partition(rows, lambda: note("partition", rows))
            faulthandler.cancel_dump_traceback_later()
        return
    device = GpuDevice()
    device.open()
    torch.manual_seed(int(time.time()))
    found["gpu"] = torch.cuda.get_device_name()
    note("checks", checks(device))
    print({name: found["checks"][name] for name in ("worst", "wrong", "other_bits")}, flush=True)


if __name__ == "__main__":
    main()
