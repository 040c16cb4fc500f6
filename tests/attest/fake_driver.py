"""NVIDIA's driver, played by a library in C (fake_nvml.c) whose answers are ours, over GPUs of our own making."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.fuzz.nvidia_made import MadeGpu

CRASH = 99999
NOT_SUPPORTED = 3
CONFIDENTIAL = (2, 1, 0)
"""Environment for production, confidential mode on, no tools for developers."""


def built_library(folder: Path) -> Path:
    """The library under the name the driver's has, in a folder to be searched."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build a driver with")
    library = folder / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("fake_nvml.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, source], check=True)
    return library


@dataclass
class Driver:
    """What it answers; may be changed while it runs."""

    gpus: list[MadeGpu] = field(default_factory=lambda: [MadeGpu()])
    state: tuple[int, int, int] = CONFIDENTIAL
    codes: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    """Sizes it states, where they are wrong."""
    report: Callable[[int, bytes], bytes] | None = None
    asked: list[tuple[str, int, bytes]] = field(default_factory=list)
    may_answer: threading.Event = field(default_factory=threading.Event)

    def answer(self, what: str, index: int, nonce: bytes) -> bytes:
        self.asked.append((what, index, nonce))
        data, stated = b"", 0
        if what == "N":
            stated = len(self.gpus)
        elif what == "S":
            data = struct.pack("=3I", *self.state)
        elif what == "C":
            data = self.gpus[index].chain + b"\0"
        elif what == "R":
            assert self.may_answer.wait(30)
            data = self.report(index, nonce) if self.report else self.gpus[index].report(nonce)
        size = self.sizes.get(what, stated or len(data))
        return struct.pack("=3I", self.codes.get(what, 0), size, len(data)) + data


@contextmanager
def running_driver(folder: Path) -> Iterator[Driver]:
    """It answers at $CLOISTER_FAKE_NVML while this lasts."""
    driver, place = Driver(), str(folder / "driver")
    driver.may_answer.set()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(place)
    listener.listen()

    def serve() -> None:
        with suppress(OSError):
            while True:
                line, _ = listener.accept()
                with line, suppress(OSError):
                    question = line.recv(37, socket.MSG_WAITALL)
                    index = int.from_bytes(question[1:5], "little")
                    line.sendall(driver.answer(chr(question[0]), index, question[5:]))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    os.environ["CLOISTER_FAKE_NVML"] = place
    try:
        yield driver
    finally:
        del os.environ["CLOISTER_FAKE_NVML"]
        driver.may_answer.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)
