"""How the node's own Python processes are started: as the user's Python finds them, or of a release's code alone.

Which of the two, this process passes on: what it starts is of the same release (release_code.py).
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from typing import TYPE_CHECKING

from cloister.process import release_code

if TYPE_CHECKING:
    from cloister.process.release_code import ReleaseCode

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_running: ReleaseCode | None = None


def begin(code: ReleaseCode) -> None:
    """Said once, before anything else of ours runs."""
    global _running
    _running = code


def running() -> ReleaseCode | None:
    """The code this process is held to; None: whatever Python finds."""
    return _running


def check_loaded() -> None:
    """End this process if anything was loaded that is not of the release it is held to."""
    if _running is not None:
        _running.check_loaded()


def python(module: str, *arguments: str) -> list[str]:
    """The command for `python -m module …`, held to what we are held to. It needs the descriptors of `inherited`."""
    if _running is None:
        return [sys.executable, "-P", "-m", module, *arguments]
    return _of_the_release(_running.descriptor, module, *arguments)


def inherited() -> list[int]:
    return [] if _running is None else [_running.descriptor]


def python_of(manifest: bytes, module: str, *arguments: str) -> list[str]:
    """The same for the first process of a node, held to this release. Its descriptor stays open for it."""
    told = json.dumps({"manifest": manifest.decode(), "folders": release_code.package_folders()}).encode()
    note = sealed_file("cloister-release", told)
    os.set_inheritable(note, True)
    return _of_the_release(note, module, *arguments)


def sealed_file(name: str, data: bytes, *, flags: int = 0) -> int:
    """A memory file that nobody can change."""
    memory = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
    with open(memory, "wb", closefd=False) as file:
        file.write(data)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
    return memory


def _of_the_release(note: int, module: str, *arguments: str) -> list[str]:
    return [sys.executable, *release_code.FLAGS, release_code.__file__, str(note), module, *arguments]
