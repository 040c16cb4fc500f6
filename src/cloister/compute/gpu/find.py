"""Whether the kernels can use a GPU here. A child asks: a process that initialised CUDA cannot fork users of CUDA."""

import ctypes
import importlib.util
import os
from collections.abc import Callable
from functools import cache
from glob import glob
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import msgspec
import torch

from cloister.compute.prebuilt import kernels_folder, kernels_of_release
from cloister.errors import where_raised
from cloister.files import make_folder, write_whole

NAMES = ("common", "stage", "linear", "queries", "rows", "attention", "link", "answer")
SOURCES = tuple(f"{name}.cuh" for name in NAMES)
DIMS = (64, 128)  # widths of heads that the kernels are compiled for


def source() -> str:
    folder = Path(__file__).parent
    return "\n".join((folder / name).read_text() for name in SOURCES)


def compiled(arch: str, dim: int) -> bytes:
    """By NVRTC, for one architecture (sm_90a, …) and one width of heads. cuda-core asks CUDA for its version."""
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(arch=arch, std="c++17", define_macro=[("DIM", str(dim))])
    return bytes(Program(source(), "c++", options).compile("cubin").code)


def kernels(arch: str, dim: int) -> bytes:
    """Compiled here, or, under a release, before."""
    released = kernels_of_release(f"gpu-{arch}-{dim}.cubin")
    return compiled(arch, dim) if released is None else released


def write_kernels() -> dict[Path, str]:
    """Into the cache folder, for a release to name: each with what built it. Nothing without a GPU."""
    written = {}
    for dim, code in find().code.items():
        file = kernels_folder() / f"gpu-{find().architecture}-{dim}.cubin"
        make_folder(file.parent)
        write_whole(file, code)
        written[file] = f"NVRTC {torch.version.cuda} | {find().architecture} | DIM={dim}"
    return written


LEAST_CAPABILITY = (9, 0)
CONTROL, DEVICES = "/dev/nvidiactl", ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia[0-9]*")
_GPU = "cloister.compute.gpu"
_LOADED = ("cuda.core", "cuda.bindings.driver", f"{_GPU}.device")


class Found(msgspec.Struct, frozen=True):
    refusal: str = ""
    architecture: str = ""
    code: dict[int, bytes] = {}


def refusal() -> str:
    return find().refusal


def devices() -> tuple[str, ...]:
    return tuple(sorted(path for pattern in DEVICES for path in glob(pattern)))


@cache
def find() -> Found:
    """Asked once: processes forked later have the answer."""
    if torch.version.cuda is None or not os.path.exists(CONTROL):
        return Found("This machine has no NVIDIA GPU, or torch was built without CUDA.")
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.core") is None:
        return Found("The package cuda-core, which compiles the kernels, is not installed.")
    begun: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return ask() if begun else in_child(ask)


def in_child(asks: Callable[[], Found]) -> Found:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        _answer(writing, asks)
    os.close(writing)
    with open(reading, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    try:
        return msgspec.msgpack.decode(answer, type=Found)
    except msgspec.MsgspecError:
        return Found("The process that asked for a GPU ended before it answered.")


def _answer(writing: int, asks: Callable[[], Found]) -> NoReturn:
    try:
        try:
            found = asks()
        except Exception as failure:
            found = Found(f"The GPU cannot be used: {where_raised(failure)}.")
        with open(writing, "wb") as pipe:
            pipe.write(msgspec.msgpack.encode(found))
    finally:
        os._exit(0)


def ask() -> Found:
    """This process can fork no process that uses the GPU afterwards."""
    if not torch.cuda.is_available():
        return Found("This machine has no NVIDIA GPU that CUDA can use.")
    if why := too_old(torch.cuda.get_device_capability()):
        return Found(why)
    arch = architecture(*torch.cuda.get_device_capability())
    try:
        return Found(architecture=arch, code={dim: kernels(arch, dim) for dim in DIMS})
    except SystemExit:
        return Found("The release names no kernels for this GPU.")


def architecture(major: int, minor: int) -> str:
    """For the compiler. Hopper's own tensor operations are no later GPU's (stage.cuh)."""
    return f"sm_{major}{minor}" + "a" * (major == 9)


def too_old(capability: tuple[int, int]) -> str:
    if capability >= LEAST_CAPABILITY:
        return ""
    found = ".".join(map(str, capability))
    return f"The kernels need a Hopper GPU or a later one (compute capability 9.0); this one has {found}."


def fetch() -> None:
    """Import all that computing on the GPU takes: a sealed process can open no file."""
    if not find().refusal:
        for name in _LOADED:
            import_module(name)
        ctypes.CDLL("libcuda.so.1")
