"""Builds the native kernels once for this machine and keeps the library in the cache folder.

The library's name carries a hash of the sources, the flags, the compiler and the processor's features, so a change of
any of them builds anew. Without a C compiler on PATH the one in the `ziglang` package serves, where it is installed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from cloister.config import cache_folder
from cloister.errors import SetupError

SOURCES = ("native.c", "linear.h", "attention.h", "link.h", "draw.h", "lanes.h", "team.h")
FLAGS = (
    *("-O3", "-march=native", "-std=gnu11", "-ffp-contract=fast", "-fno-math-errno"),
    *("-fPIC", "-shared", "-fvisibility=hidden", "-pthread"),
)
WITHOUT_TILES = ("-mno-amx-bf16", "-mno-amx-int8", "-mno-amx-tile")


def find_compiler() -> list[str] | None:
    """The command of a C compiler, or None."""
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return [found]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    return None


def build_library(*, tiles: bool = True) -> Path:
    """The shared library, built now if it is not there yet; `tiles=False` leaves the AMX registers alone."""
    compiler = find_compiler()
    if compiler is None:
        raise SetupError(
            "The native kernels need a C compiler and none was found.",
            hint="Install gcc or clang, or `pip install ziglang`, or start with --kernels reference.",
        )
    flags = (*FLAGS, *(() if tiles or platform.machine() != "x86_64" else WITHOUT_TILES))
    folder = Path(__file__).parent
    library = cache_folder() / "kernels" / f"native-{_fingerprint(folder, compiler, flags)}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        _compile(compiler, flags, folder / "native.c", library)
    return library


def _compile(compiler: list[str], flags: tuple[str, ...], source: Path, library: Path) -> None:
    handle, name = tempfile.mkstemp(dir=library.parent, suffix=".part")
    os.close(handle)
    try:
        done = subprocess.run([*compiler, *flags, str(source), "-o", name], capture_output=True, text=True, check=False)
        if done.returncode:
            first = next((line for line in done.stderr.splitlines() if "error" in line), "no message")
            raise SetupError(f"The native kernels do not compile: {first}", hint="Start with --kernels reference.")
        os.chmod(name, 0o755)
        os.replace(name, library)
    finally:
        Path(name).unlink(missing_ok=True)


def _fingerprint(folder: Path, compiler: list[str], flags: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for source in SOURCES:
        digest.update((folder / source).read_bytes())
    version = subprocess.run([*compiler, "--version"], capture_output=True, check=False).stdout
    digest.update(repr((compiler, flags, version, _processor_features())).encode())
    return digest.hexdigest()[:16]


def _processor_features() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
