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
    dtype = DTYPES[settings.dtype]
    if settings.kernels == "reference":
        return ReferenceKernels(dtype)
    try:
        return NativeKernels(dtype, settings.threads)
    except SetupError as reason:
        if settings.kernels == "native":
            raise
        log.warning("Serving with the slow reference kernels. %s", reason)
        return ReferenceKernels(dtype)
