"""A needle on the stack of another process: what the search must find there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def planted_on_the_stack(pid: int, content: bytes) -> Iterator[None]:
    """A process that is stopped has this at the far end of its stack; then again what was there."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    [stack] = [line for line in lines if line.endswith("[stack]")]
    end = int(stack.split("-")[0], 16)
    with open(f"/proc/{pid}/mem", "r+b", 0) as memory:
        before = os.pread(memory.fileno(), len(content), end)
        os.pwrite(memory.fileno(), content, end)
        try:
            yield
        finally:
            os.pwrite(memory.fileno(), before, end)
