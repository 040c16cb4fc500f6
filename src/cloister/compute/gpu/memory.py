"""GPU memory shared by descriptor. The importer chooses its access: no handle is read-only (docs/gpu.md)."""

import os
from collections.abc import Callable
from typing import Any

import torch
from cuda.bindings import driver

from cloister.errors import SetupError

GRANULARITY = 2 * 2**20
_FD = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
_READ = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ


def _call(function: Callable[..., tuple[Any, ...]], *arguments: Any) -> Any:
    error, *values = function(*arguments)
    if error == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        hint = "Keep fewer or smaller caches (--kv-cache-mib, --vault-kv-mib)."
        raise SetupError("The GPU's memory is full.", hint=hint)
    if error:
        raise SetupError(f"The GPU's memory cannot be shared ({function.__name__}: {error.name}).")
    return values[0] if values else None


def leave_no_stack() -> None:
    """A kernel that needs some gets it at its first launch."""
    _call(driver.cuCtxSetLimit, driver.CUlimit.CU_LIMIT_STACK_SIZE, 0)


class SharedMemory:
    """`address` is valid in this process alone. Without `writes` a write there is a fault of the GPU."""

    def __init__(self, handle: Any, size: int, at: int | None = None, *, writes: bool = True) -> None:
        self.size, self._handle, self._reserved = size, handle, at is None
        self.address = reserved(size) if at is None else at
        try:
            _call(driver.cuMemMap, self.address, size, 0, handle, 0)
        except SetupError:  # the memory is smaller than agreed
            if self._reserved:
                driver.cuMemAddressFree(self.address, size)
            driver.cuMemRelease(handle)
            raise
        self._allow(driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if writes else _READ)

    @classmethod
    def create(cls, size: int, at: int | None = None) -> "SharedMemory":
        size = whole(size)
        described = driver.CUmemAllocationProp()
        described.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        described.requestedHandleTypes = _FD
        described.location = _here()
        memory = cls(_call(driver.cuMemCreate, size, described, 0), size, at)
        memory.wipe()
        return memory

    @classmethod
    def adopt(cls, fd: int, size: int, *, writes: bool = True) -> "SharedMemory":
        """The caller closes the descriptor."""
        return cls(_call(driver.cuMemImportFromShareableHandle, fd, _FD), whole(size), writes=writes)

    def protect(self) -> None:
        """From now on a write through this mapping faults."""
        self._allow(_READ)

    def export(self) -> int:
        """The caller closes the descriptor."""
        fd = int(_call(driver.cuMemExportToShareableHandle, self._handle, _FD, 0))
        os.set_inheritable(fd, False)
        return fd

    def wipe(self, start: int = 0, size: int | None = None) -> None:
        _call(driver.cuMemsetD8, self.address + start, 0, self.size - start if size is None else size)

    @property
    def bytes(self) -> torch.Tensor:
        return torch.as_tensor(_Described(self.address, self.size), device="cuda")

    def _allow(self, flags: Any) -> None:
        access = driver.CUmemAccessDesc()
        access.location = _here()
        access.flags = flags
        _call(driver.cuMemSetAccess, self.address, self.size, [access], 1)

    def close(self) -> None:
        _call(driver.cuMemUnmap, self.address, self.size)
        _call(driver.cuMemRelease, self._handle)
        if self._reserved:
            _call(driver.cuMemAddressFree, self.address, self.size)


class _Described:
    """Memory of the GPU as torch takes it from others, without a copy."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def reserved(size: int) -> int:
    return int(_call(driver.cuMemAddressReserve, size, 0, 0, 0))


def whole(size: int) -> int:
    return -(-size // GRANULARITY) * GRANULARITY


def _here() -> Any:
    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = torch.cuda.current_device()
    return location
