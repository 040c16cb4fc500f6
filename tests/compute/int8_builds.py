"""The kernels built for other processors than this one: each way to multiply int8 that can be shown here."""

from __future__ import annotations

import ctypes
import subprocess
from functools import cache
from pathlib import Path

import pytest
import torch

from cloister.compute.cpu import library
from cloister.compute.cpu.native import NativeKernels
from cloister.config import cache_folder

HERE = Path(__file__).parent
SOURCES = Path(library.__file__).parent
BUILDS = {
    "c": (("-march=x86-64-v2", "-mavx", "-mfma"), "fma"),
    "avx2": (("-march=x86-64-v3",), "avx2"),
    "avx-vnni": (("-march=x86-64-v3", "-mavxvnni"), "avx_vnni"),
    "avx512-vnni": (("-march=x86-64-v4", "-mavx512vnni"), "avx512_vnni"),
    "amx": (
        ("-march=x86-64-v3", "-D__AMX_TILE__", "-D__AMX_INT8__", "-include", str(HERE / "amx_in_c.h")),
        "avx2",
    ),
}
"""What each needs of the processor, beside the compiler's flags. AMX's tiles are made in C (amx_in_c.h)."""


@cache
def built(name: str) -> ctypes.CDLL:
    flags, needed = BUILDS[name]
    if name == (here := library.load_library(1).cloister_int8_with().decode()):
        pytest.skip(f"the library of this machine is the build {here}")
    if needed not in library._processor_features().split():
        pytest.skip(f"this processor has no {needed}")
    compiler = library.find_compiler()
    if compiler is None:
        pytest.skip("no C compiler on this machine")
    general = [flag for flag in library.FLAGS if not flag.startswith(("-march", "-O"))]
    command = [*compiler, "-O2", *general, *flags, str(SOURCES / "native.c")]
    folder = cache_folder() / "tests"
    folder.mkdir(parents=True, exist_ok=True)
    to = folder / f"{name}-{library._fingerprint(SOURCES, compiler, tuple(command))}.so"
    if not to.exists():
        subprocess.run([*command, "-o", str(to)], check=True, capture_output=True)
    return library.prepared(ctypes.CDLL(str(to)))


def kernels_built(name: str) -> NativeKernels:
    kernels = NativeKernels(torch.bfloat16, threads=1, int8=True)
    kernels.library = built(name)
    said = kernels.library.cloister_int8_with().decode()
    assert said == name
    return kernels
