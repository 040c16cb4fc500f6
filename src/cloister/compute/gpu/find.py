"""Whether this machine has a GPU the kernels can use. Imports nothing that a machine without one may lack."""

from __future__ import annotations

import importlib.util

import torch

from cloister.compute.base import Device
from cloister.errors import SetupError

LEAST_CAPABILITY = (9, 0)
HINT = "Install torch with CUDA and `cloister[gpu]`, or compute on the CPU."


def refusal() -> str:
    """Why there is no GPU to compute on; empty if there is one."""
    if not torch.cuda.is_available():
        return "This machine has no NVIDIA GPU, or torch was built without CUDA."
    capability = torch.cuda.get_device_capability()
    if capability < LEAST_CAPABILITY:
        found = ".".join(map(str, capability))
        return f"The kernels need a Hopper GPU or a later one (compute capability 9.0); this one has {found}."
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.core") is None:
        return "The package cuda-core, which compiles the kernels, is not installed."
    return ""


def gpu_device() -> Device:
    """The current GPU as a device."""
    if why := refusal():
        raise SetupError(why, hint=HINT)
    from cloister.compute.gpu.kernels import GpuDevice

    return GpuDevice()
