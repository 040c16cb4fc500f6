"""Run by a test: maps sealed weights, builds a decoder on them, forks children that read every byte, and counts.

Arguments: the descriptor, the model's folder, how many children. Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from time import perf_counter

import torch

from cloister.compute.choose import choose_device
from cloister.config import EngineSettings
from cloister.models.load import load_decoder
from cloister.models.sealed import SealedParts
from cloister.models.source import ModelFolder


def totals(pid: int, file: str) -> dict[str, int]:
    """Bytes of the mapping of the weights (smaps) or of everything (smaps_rollup), by field."""
    counted: dict[str, int] = {}
    inside = file == "smaps_rollup"
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            inside = file == "smaps_rollup" or "memfd:cloister-weights" in line
        elif inside and rest[-1] == "kB":
            counted[name[:-1]] = counted.get(name[:-1], 0) + 1024 * int(rest[0])
    return counted


def main(fd: int, path: Path, children: int) -> None:
    torch.set_num_threads(1)
    folder = ModelFolder("test", path, json.loads((path / "config.json").read_bytes()))
    device = choose_device(EngineSettings(threads=1))
    load_decoder(folder, SealedParts(fd, device.kernels), device)  # imports what decoders need
    threads, before = len(os.listdir("/proc/self/task")), totals(os.getpid(), "smaps_rollup")["Anonymous"]
    started = perf_counter()
    parts = SealedParts(fd, device.kernels)
    decoder = load_decoder(folder, parts, device)
    seconds = perf_counter() - started
    grown = totals(os.getpid(), "smaps_rollup")["Anonymous"] - before
    os.close(fd)
    pids, lines = [], []
    for _ in range(children):
        done, say_done = os.pipe()
        may_end, let_end = os.pipe()
        if (pid := os.fork()) == 0:
            for _, other in lines:
                os.close(other)
            os.close(let_end)
            parts.file.max()
            os.write(say_done, b"!")
            os.read(may_end, 1)
            os._exit(0)
        os.close(say_done)
        os.close(may_end)
        pids.append(pid)
        lines.append((done, let_end))
    read_all = all(os.read(done, 1) == b"!" for done, _ in lines)
    counted = [totals(pid, "smaps") for pid in (os.getpid(), *pids)]
    for _, let_end in lines:
        os.close(let_end)
    ended = [os.waitpid(pid, 0)[1] for pid in pids]
    print(
        json.dumps(
            {
                "bytes": parts.bytes,
                "read": [each.get("Rss", 0) for each in counted[1:]],
                "pss": [each.get("Pss", 0) for each in counted],
                "copied": sum(each.get("Anonymous", 0) for each in counted),
                "grown": grown,
                "threads": threads,
                "ended": ended,
                "all_read": read_all,
                "build_ms": seconds * 1e3,
                "vocabulary": decoder.vocabulary,
            }
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
