"""The C library loaded into this process, with its functions' types and its team of threads running."""

from __future__ import annotations

import ctypes
import os
from ctypes import c_float, c_int, c_size_t, c_void_p
from typing import Any

from cloister.compute.cpu.build import build_library
from cloister.errors import SetupError

SIGNATURES: dict[str, list[Any]] = {
    "pack": [c_void_p, c_int, c_int, c_int, c_void_p],
    "embed": [c_void_p, c_void_p, c_int, c_void_p],
    "linear": [c_void_p, c_int, c_void_p, c_int, c_void_p, c_int, c_void_p],
    "rms_norm": [c_void_p, *([c_int] * 4), c_void_p, c_float, c_void_p, c_int],
    "rotate_and_store": [*([c_void_p] * 3), *([c_int] * 6), *([c_void_p] * 5), c_int, c_size_t],
    "attention": [c_void_p, c_void_p, c_int],
    "before_attention": [*([c_void_p] * 3), c_int, *([c_void_p] * 5), c_size_t],
    "after_attention": [*([c_void_p] * 3), c_int, c_void_p],
    "run_layers": [c_void_p, c_int, c_void_p, c_void_p, c_int, *([c_void_p] * 4), c_size_t, c_void_p, c_void_p],
    "draw": [c_void_p],
    "use": [c_int],
    "take_short_turns": [],
}


def load_library(threads: int, *, tiles: bool = True) -> ctypes.CDLL:
    """The library, its team started; without AMX tiles where the operating system forbids them."""
    library = ctypes.CDLL(str(build_library(tiles=tiles)))
    library.cloister_bf16_with.restype = ctypes.c_char_p
    for name, types in SIGNATURES.items():
        function = getattr(library, f"cloister_{name}")
        function.argtypes, function.restype = types, None
    library.cloister_answer.argtypes = [c_void_p]
    if library.cloister_start(threads or os.cpu_count() or 1) >= 1:
        return library
    if not tiles:
        raise SetupError("The native kernels cannot start their threads.", hint="Start with --kernels reference.")
    return load_library(threads, tiles=False)
