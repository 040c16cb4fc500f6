"""The compiled kernels in this process, for one width of heads: loaded, launched, and recorded."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from cuda.bindings import driver
from cuda.core import Device, Kernel, LaunchConfig, ObjectCode, launch

from cloister.compute.gpu.find import find
from cloister.errors import SetupError

MOST_STATIC_SHARED = 48 * 1024
# how a processor should divide its memory between shared memory and the first-level cache
MOST_SHARED, NO_PREFERENCE = 100, -1

Argument = torch.Tensor | np.generic | int | None


def i32(value: int) -> np.int32:
    return np.int32(value)


class _Current:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, torch.cuda.current_stream().cuda_stream


class Kernels:
    """Launched on torch's current stream, each as soon as the one before lets it start."""

    def __init__(self, dim: int) -> None:
        device = Device(torch.cuda.current_device())
        device.set_current()
        self._device = device.device_id
        self._code = ObjectCode.from_cubin(find().code[dim])
        self._kernels: dict[str, Kernel] = {}
        self._carveouts: dict[str, int] = {}
        self.processors: int = torch.cuda.get_device_properties(self._device).multi_processor_count

    def launch(
        self,
        name: str,
        grid: tuple[int, ...],
        threads: int,
        *arguments: Argument,
        shared: int = 0,
        overlap: bool = True,
        beside: bool = False,
    ) -> None:
        """`overlap`: it may start while the kernel before it runs. `beside`: it stays on a processor, and asks for the
        most shared memory, as all such: else fewer blocks fit, or one that divides it otherwise waits."""
        kernel = self._kernels.get(name) or self._load(name)
        carveout = MOST_SHARED if beside else NO_PREFERENCE
        if self._carveouts.get(name, NO_PREFERENCE) != carveout:
            _set(int(kernel.handle), "PREFERRED_SHARED_MEMORY_CARVEOUT", carveout, self._device)
            self._carveouts[name] = carveout
        if shared > MOST_STATIC_SHARED:
            _allow_shared(int(kernel.handle), shared, self._device)
        config = LaunchConfig(grid=grid, block=threads, shmem_size=shared, programmatic_stream_serialization=overlap)
        launch(_Current(), config, kernel, *map(_passed, arguments))

    def _load(self, name: str) -> Kernel:
        kernel = self._kernels[name] = self._code.get_kernel(name)
        return kernel


@cache
def program(dim: int) -> Kernels:
    return Kernels(dim)


@cache
def _allow_shared(kernel: int, size: int, device: int) -> None:
    _set(kernel, "MAX_DYNAMIC_SHARED_SIZE_BYTES", size, device)


def _set(kernel: int, what: str, value: int, device: int) -> None:
    attribute = getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{what}")
    (error,) = driver.cuKernelSetAttribute(attribute, value, driver.CUkernel(kernel), driver.CUdevice(device))
    if error:
        raise SetupError(f"The GPU does not give a kernel the shared memory that it needs ({error.name}).")


def _passed(argument: Argument) -> Any:
    """Tensors go by address, plain integers as 64 bits, numpy's scalars as they are."""
    if argument is None:
        return 0
    return argument.data_ptr() if isinstance(argument, torch.Tensor) else argument


def capture(run: Callable[[], None]) -> Callable[[], None]:
    """`torch.cuda.graph` would wait for the whole device, on which another stream may wait for another process."""
    torch.cuda.current_stream().synchronize()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            run()
        finally:
            graph.capture_end()
    return graph.replay
