"""The C library, built once for this machine. It is read once, into sealed memory, and loaded from there: what was
measured is what runs; under a release (process/release_code.py), only one it names."""

import ctypes
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from ctypes import POINTER, Structure, c_float, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from cloister.compute.prebuilt import kernels_folder, kernels_of_release
from cloister.cores import usable_cores
from cloister.errors import SetupError
from cloister.process import interpreter
from cloister.process.release_code import KERNELS

MFD_EXEC = 0x10  # Linux 6.3: this memory file may hold code, whatever the machine's default is

SOURCES = (
    "native.c",
    "linear.h",
    "neon.h",
    "int8.h",
    "attention.h",
    "link.h",
    "start.h",
    "draw.h",
    "lanes.h",
    "quads.h",
    "team.h",
)
FLAGS = (
    *("-O3", "-march=native", "-std=gnu11", "-ffp-contract=fast", "-fno-math-errno"),
    *("-fPIC", "-shared", "-fvisibility=hidden", "-pthread"),
)
WITHOUT_TILES = ("-mno-amx-bf16", "-mno-amx-int8", "-mno-amx-tile")
SIGNATURES: dict[str, list[Any]] = {
    "pack": [c_void_p, c_int, c_int, c_int, c_void_p],
    "embed": [c_void_p, c_void_p, c_int, c_void_p],
    "linear": [c_void_p, c_int, c_void_p, c_int, c_void_p, c_int, c_void_p],
    "rms_norm": [c_void_p, *([c_int] * 4), c_void_p, c_float, c_void_p, c_int],
    "rotate_and_store": [*([c_void_p] * 3), *([c_int] * 6), *([c_void_p] * 5), c_int, c_size_t],
    "attention": [c_void_p, c_void_p, c_int],
    "run_layers": [c_void_p, c_int, c_void_p, c_void_p, c_int, *([c_void_p] * 4), c_size_t, c_void_p, c_void_p],
    "draw": [c_void_p],
    "mask": [c_void_p, c_void_p, c_int, c_int],
    "use": [c_int],
    "compare": [c_void_p],
    "withdraw": [c_void_p, c_int],
    "take_starts": [c_void_p, c_void_p, c_void_p, c_int],
    "take_short_turns": [],
}


class PackedStruct(Structure):
    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("data", "bias", "scale")),
        *((name, c_int) for name in ("columns", "k", "epilogue", "format")),
    ]


class LayerStruct(Structure):
    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("attention_norm", "q_norm", "k_norm", "mlp_norm")),
        *((name, PackedStruct) for name in ("qkv", "out", "gate_up", "down")),
        *((name, c_int) for name in ("index", "hidden", "heads", "kv_heads", "dim", "rotary", "window")),
        *((name, c_float) for name in ("epsilon", "scale")),
    ]


class WorkspaceStruct(Structure):
    _fields_: ClassVar = [(name, c_void_p) for name in ("normed", "qkv", "gated", "tiles")]


class AttentionStruct(Structure):
    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("q", "out", "keys", "values", "tables", "span", "position")),
        *((name, c_void_p) for name in ("tile_row", "tile_rows", "segments", "counts")),
        *((name, c_void_p) for name in ("rotation_cosine", "rotation_sine", "remote", "parts")),
        ("block", c_size_t),
        *((name, c_int) for name in ("tiles", "heads", "kv_heads", "dim", "q_stride", "table_stride")),
        *((name, c_int) for name in ("window", "bf16", "rotary")),
        ("scale", c_float),
    ]


class AskedStruct(Structure):
    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("question", "reply", "row", "ask")),
        *((name, c_uint32) for name in ("number", "rows", "capacity", "verdict")),
        ("patience_ns", c_uint64),
    ]


class AskingStruct(Structure):
    _fields_: ClassVar = [("links", POINTER(POINTER(AskedStruct))), ("count", c_int), ("waited_ns", c_uint64)]


class SlotStruct(Structure):
    _fields_: ClassVar = [
        *((name, c_int32) for name in ("exposed", "length", "ahead", "rotated", "asked")),
        *((name, c_void_p) for name in ("blocks", "cosine", "sine")),
    ]


class AnsweringStruct(Structure):
    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("question", "reply", "slots", "keys", "values")),
        *((name, c_size_t) for name in ("cache_bytes_per_layer", "block")),
        *((name, c_void_p) for name in ("scale", "window", "query", "record")),
        ("key", c_uint64),
        ("starting", c_void_p),
        *((name, c_int) for name in ("slot_count", "heads", "kv_heads", "dim", "layers", "capacity", "rotary", "bf16")),
        *((name, c_int) for name in ("recorded", "event")),
        *((name, c_uint32) for name in ("number", "verdict", "started", "busy")),
        ("first", c_int),
    ]


class BegunStruct(Structure):
    _fields_: ClassVar = [(name, c_int32) for name in ("origin", "limit", "first_block")]


class StartingStruct(Structure):
    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("layers", "embedding", "space", "job", "tables", "span", "position", "begun")),
        *((name, c_void_p) for name in ("token", "place", "x", "cosine", "sine", "cosines", "sines", "phases")),
        *((name, c_int) for name in ("hidden", "rotary", "vocabulary", "positions")),
    ]


class ComparingStruct(Structure):
    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("place", "record")),
        ("key", c_uint64),
        *((name, c_int) for name in ("rows", "recorded", "first")),
        ("differing", c_uint32),
    ]


class DrawStruct(Structure):
    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("logits", "temperature", "min_p", "top_p", "u", "top_k", "token")),
        *((name, c_void_p) for name in ("probabilities", "ranked")),
        *((name, c_int) for name in ("rows", "width")),
    ]


def find_compiler() -> list[str] | None:
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return [found]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    return None


def build_library(*, tiles: bool = True) -> Path:
    """`tiles=False` leaves the AMX registers alone."""
    compiler, flags = _needed_compiler(), _flags(tiles)
    folder = Path(__file__).parent
    name = f"native-{_processor(tiles)}-{_fingerprint(folder, compiler, flags)}.so"
    library = kernels_folder() / name
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        _compile(compiler, flags, folder / "native.c", library)
    return library


def built_with(*, tiles: bool = True) -> str:
    """The compiler and its flags: a release names them beside the library's hash."""
    compiler = _needed_compiler()
    said = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False).stdout.splitlines()
    return f"{said[0] if said else compiler[-1]} | {' '.join(_flags(tiles))}"


def has_two() -> bool:
    """Whether the library without tiles is another one."""
    return _flags(True) != _flags(False)


def _needed_compiler() -> list[str]:
    compiler = find_compiler()
    if compiler is None:
        hint = "Install gcc or clang, or `pip install ziglang`, or start with --kernels reference."
        raise SetupError("The native kernels need a C compiler and none was found.", hint=hint)
    return compiler


def _flags(tiles: bool) -> tuple[str, ...]:
    return (*FLAGS, *(() if tiles or platform.machine() != "x86_64" else WITHOUT_TILES))


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


def _processor(tiles: bool) -> str:
    """Libraries for one kind of processor have it in their names: no compiler is needed to find them."""
    return hashlib.sha256(repr((_flags(tiles), _processor_features())).encode()).hexdigest()[:8]


def _processor_features() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


@cache
def open_library(*, tiles: bool = True) -> ctypes.CDLL:
    """Read once: a process forked later has the code, whatever became of the file."""
    released = kernels_of_release(f"native-{_processor(tiles)}-*.so")
    memory = _sealed(build_library(tiles=tiles).read_bytes() if released is None else released)
    try:
        return ctypes.CDLL(f"/proc/self/fd/{memory}")
    finally:
        os.close(memory)


def _sealed(code: bytes) -> int:
    try:
        return interpreter.sealed_file(KERNELS, code, flags=MFD_EXEC)
    except OSError:
        return interpreter.sealed_file(KERNELS, code)


def load_library(threads: int, *, tiles: bool = True) -> ctypes.CDLL:
    """With its team started; without AMX tiles where the operating system forbids them."""
    library = prepared(open_library(tiles=tiles))
    if library.cloister_start(threads or usable_cores()) >= 1:
        return library
    if not tiles:
        raise SetupError("The native kernels cannot start their threads.", hint="Start with --kernels reference.")
    return load_library(threads, tiles=False)


def prepared(library: ctypes.CDLL) -> ctypes.CDLL:
    library.cloister_bf16_with.restype = library.cloister_int8_with.restype = ctypes.c_char_p
    for name, types in SIGNATURES.items():
        function = getattr(library, f"cloister_{name}")
        function.argtypes, function.restype = types, None
    library.cloister_answer.argtypes = [c_void_p]
    return library
