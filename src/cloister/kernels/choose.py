"""Which kernels serve on this machine."""

from __future__ import annotations

import logging

import torch

from cloister.config import EngineSettings
from cloister.errors import SetupError
from cloister.kernels.base import Kernels
from cloister.kernels.native import NativeKernels
from cloister.kernels.reference import ReferenceKernels

log = logging.getLogger(__name__)

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def choose_kernels(settings: EngineSettings) -> Kernels:
    """The native kernels; the reference where they were asked for, or where no compiler is and `auto` allows it."""
    dtype, int8 = DTYPES[settings.dtype], settings.weights == "int8"
    if int8 and settings.dtype != "bf16":
        raise SetupError("int8 weights are computed in bf16.", hint="Leave out --dtype fp32 or --weights int8.")
    if settings.kernels == "reference":
        return ReferenceKernels(dtype, int8=int8)
    try:
        return NativeKernels(dtype, settings.threads, int8=int8)
    except SetupError as reason:
        if settings.kernels == "native":
            raise
        log.warning("Serving with the slow reference kernels. %s", reason)
        return ReferenceKernels(dtype, int8=int8)
