"""The kernels' CUDA C++, compiled by NVRTC through cuda-core for one GPU and one width of heads."""

from __future__ import annotations

from pathlib import Path

SOURCES = ("common.cuh", "stage.cuh", "linear.cuh", "rows.cuh", "attention.cuh", "link.cuh", "answer.cuh")
DIMS = (64, 128)  # widths of heads that the kernels are compiled for


def source() -> str:
    folder = Path(__file__).parent
    return "\n".join((folder / name).read_text() for name in SOURCES)


def compiled(arch: str, dim: int) -> bytes:
    """For one architecture (sm_90a, …). cuda-core asks CUDA for its version: see find.py."""
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(arch=arch, std="c++17", define_macro=[("DIM", str(dim))])
    return bytes(Program(source(), "c++", options).compile("cubin").code)
