from __future__ import annotations

import pytest
import torch

from cloister.compute.base import Kernels
from cloister.compute.cpu.library import find_compiler
from cloister.compute.cpu.native import NativeKernels
from cloister.compute.reference import ReferenceKernels

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
VARIANTS = ("native", "native-without-tiles", "reference")


def make_kernels(variant: str, dtype: str) -> Kernels:
    if variant == "reference":
        return ReferenceKernels(DTYPES[dtype])
    if find_compiler() is None:
        pytest.skip("no C compiler on this machine")
    return NativeKernels(DTYPES[dtype], threads=2, tiles=variant == "native")


@pytest.fixture(params=[f"{variant}/{dtype}" for variant in VARIANTS for dtype in DTYPES])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return make_kernels(*request.param.split("/"))


@pytest.fixture(params=[f"{variant}/{dtype}" for variant in VARIANTS[:2] for dtype in DTYPES])
def native(request: pytest.FixtureRequest) -> Kernels:
    return make_kernels(*request.param.split("/"))
