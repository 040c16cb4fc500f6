"""Processes whose freed tensors stay as they are, on every machine: with the library of `unwiped.c` before glibc.

Children of a server get a small environment, without LD_PRELOAD. So each finds a `sitecustomize` on PYTHONPATH, which
starts the process again with the library.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from cloister.compute.cpu.library import find_compiler

SOURCE = Path(__file__).with_name("unwiped.c")

_AGAIN = """
import os, sys
if os.environ.get("LD_PRELOAD") != {library!r}:
    os.execve(sys.executable, sys.orig_argv, {{**os.environ, "LD_PRELOAD": {library!r}}})
"""


def environment(folder: Path) -> dict[str, str]:
    """What a process and all it starts must be given for this; `folder` is new and stays."""
    library = folder / "unwiped.so"
    compiler = find_compiler()
    assert compiler is not None
    subprocess.run([*compiler, "-shared", "-fPIC", "-O1", "-pthread", "-o", str(library), str(SOURCE)], check=True)
    (folder / "sitecustomize.py").write_text(_AGAIN.format(library=str(library)))
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"LD_PRELOAD": str(library), "PYTHONPATH": os.pathsep.join(paths)}
