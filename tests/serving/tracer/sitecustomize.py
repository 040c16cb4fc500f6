"""Put on PYTHONPATH by test_walk.py: every Python process of the node notes which files of src/cloister it runs.

The notes are bytes of one shared mapping, made before a process is sealed: byte 0 switches recording on, byte n stands
for the n-th file. A sealed process can write there without a system call. A template notes nothing, and what it forks
does: to trace its imports would take as long as all else.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any


def record(notes: Path, source: Path) -> None:
    with notes.open("r+b") as file:
        seen = mmap.mmap(file.fileno(), 0)
    numbers = {str(path): number for number, path in enumerate(sorted(source.rglob("*.py")), 1)}

    def called(frame: FrameType, event: str, argument: Any) -> None:
        if seen[0] and (number := numbers.get(frame.f_code.co_filename)):
            seen[number] = 1

    def begin() -> None:
        threading.settrace(called)
        sys.settrace(called)

    if "cloister.process.template" in sys.orig_argv:
        os.register_at_fork(after_in_child=begin)
    else:
        begin()


if "CLOISTER_WALK_NOTES" in os.environ:
    record(Path(os.environ["CLOISTER_WALK_NOTES"]), Path(os.environ["CLOISTER_WALK_SOURCE"]))
