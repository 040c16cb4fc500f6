"""NVIDIA's MPS for the bench: without it processes take turns, and none can wait for another."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cloister.process.hardening import die_with_parent

DAEMON = "nvidia-cuda-mps-control"
START_S, END_S, LOOK_S = 10.0, 5.0, 0.02
NAMES = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")


def pipe_folder() -> str:
    return os.environ.get(NAMES[0], "")


@contextmanager
def mps() -> Iterator[bool]:
    daemon = shutil.which(DAEMON)
    if daemon is None:
        yield False
        return
    folder = Path(tempfile.mkdtemp(prefix="cloister-mps-"))
    before = {name: os.environ.get(name) for name in NAMES}
    os.environ |= dict.fromkeys(NAMES, str(folder))
    quiet = subprocess.DEVNULL  # else it keeps this process's pipes open
    process = subprocess.Popen(
        [daemon, "-f"], stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True, preexec_fn=die_with_parent
    )
    try:
        end = time.monotonic() + START_S
        while not (folder / "control").exists() and process.poll() is None and time.monotonic() < end:
            time.sleep(LOOK_S)
        yield process.poll() is None and (folder / "control").exists()
    finally:
        if process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                subprocess.run([daemon], input=b"quit -t 1\n", stdout=quiet, stderr=quiet, timeout=END_S, check=False)
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(folder, ignore_errors=True)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
