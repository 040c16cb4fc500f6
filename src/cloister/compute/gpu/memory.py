"""Memory of the GPU that two processes map: created by one, handed to the other as a file descriptor.

The importer chooses its access: a handle cannot be given out read-only (docs/gpu.md).
"""

from __future__ import annotations

import os
from typing import Any

import torch
from cuda.bindings import driver

from cloister.errors import SetupError

GRANULARITY = 2 * 2**20
_FD = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def _done(result: tuple[Any, ...]) -> Any:
    error, *values = result
    if error:
        raise SetupError(f"The GPU's memory cannot be shared ({error.name}).")
    return values[0] if values else None


class SharedMemory:
    """`address` is valid in this process alone."""

    def __init__(self, handle: Any, size: int) -> None:
        self.size, self._handle = size, handle
        self.address = int(_done(driver.cuMemAddressReserve(size, 0, 0, 0)))
        try:
            _done(driver.cuMemMap(self.address, size, 0, handle, 0))
        except SetupError:  # it is smaller than agreed
            driver.cuMemAddressFree(self.address, size)
            driver.cuMemRelease(handle)
            raise
        access = driver.CUmemAccessDesc()
        access.location = _here()
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        _done(driver.cuMemSetAccess(self.address, size, [access], 1))

    @classmethod
    def create(cls, size: int) -> SharedMemory:
        """Zeros."""
        size = _whole(size)
        described = driver.CUmemAllocationProp()
        described.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        described.requestedHandleTypes = _FD
        described.location = _here()
        memory = cls(_done(driver.cuMemCreate(size, described, 0)), size)
        memory.wipe()
        return memory

    @classmethod
    def adopt(cls, fd: int, size: int) -> SharedMemory:
        """What another process created; the caller closes the descriptor."""
        return cls(_done(driver.cuMemImportFromShareableHandle(fd, _FD)), _whole(size))

    def export(self) -> int:
        """A descriptor for the other process; the caller closes it."""
        fd = int(_done(driver.cuMemExportToShareableHandle(self._handle, _FD, 0)))
        os.set_inheritable(fd, False)
        return fd

    def wipe(self) -> None:
        _done(driver.cuMemsetD8(self.address, 0, self.size))

    def close(self) -> None:
        _done(driver.cuMemUnmap(self.address, self.size))
        _done(driver.cuMemRelease(self._handle))
        _done(driver.cuMemAddressFree(self.address, self.size))


def _whole(size: int) -> int:
    return -(-size // GRANULARITY) * GRANULARITY


def _here() -> Any:
    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = torch.cuda.current_device()
    return location
