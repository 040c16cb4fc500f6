"""The device of this machine."""

import logging
from pathlib import Path

import torch

from cloister.compute.base import Device
from cloister.compute.cpu.library import build_library, built_with, has_two, open_library
from cloister.compute.cpu.native import CpuDevice, NativeKernels
from cloister.compute.gpu import find
from cloister.compute.reference import ReferenceDevice, ReferenceKernels
from cloister.config import EngineSettings
from cloister.errors import SetupError

log = logging.getLogger(__name__)

GPU_HINT = "Install torch with CUDA and `cloister[gpu]`, or compute on the CPU."
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def fetch_kernels() -> None:
    """Have this machine's kernels in memory: processes forked later look for them nowhere else."""
    find.fetch()
    open_library()


def built_libraries() -> dict[Path, str]:
    kinds = (True, False) if has_two() else (True,)
    return {build_library(tiles=tiles): built_with(tiles=tiles) for tiles in kinds} | find.write_kernels()


def choose_device(settings: EngineSettings) -> Device:
    """A GPU the kernels can use; else the CPU's native kernels; the reference if asked for, or without a compiler."""
    dtype, int8 = DTYPES[settings.dtype], settings.weights == "int8"
    if int8 and settings.dtype != "bf16":
        raise SetupError("Beside int8 weights all is bf16.", hint="Leave out --dtype fp32 or --weights int8.")
    if settings.kernels == "reference":
        return ReferenceDevice(ReferenceKernels(dtype, int8=int8))
    if settings.kernels == "gpu" and (int8 or settings.dtype != "bf16"):
        hint = "Leave out --dtype fp32 and --weights int8, or compute on the CPU with --kernels native."
        raise SetupError("The GPU computes in bf16, without int8 weights.", hint=hint)
    suits_gpu = (settings.kernels, settings.dtype, settings.weights) == ("auto", "bf16", "as-dtype")
    if settings.kernels == "gpu" or (suits_gpu and not find.refusal()):
        return gpu_device()
    try:
        return CpuDevice(NativeKernels(dtype, settings.threads, int8=int8))
    except SetupError as reason:
        if settings.kernels == "native":
            raise
        log.warning("Serving with the slow reference kernels. %s", reason)
        return ReferenceDevice(ReferenceKernels(dtype, int8=int8))


def gpu_device() -> Device:
    if why := find.refusal():
        raise SetupError(why, hint=GPU_HINT)
    from cloister.compute.gpu.device import GpuDevice  # needs packages that a machine without a GPU may lack

    return GpuDevice()
