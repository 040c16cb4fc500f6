"""The weights' file, once in the GPU's memory. An importer chooses its access, so processes map it before their seal;
then the page tables stop a write. The service gives up its right to write after the copy."""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from cloister.compute.gpu.memory import SharedMemory


class SharedWeights:
    def __init__(self, file: torch.Tensor, memory: "SharedMemory") -> None:
        self._file, self._memory, self._bytes = file, memory, memory.bytes

    @classmethod
    def copied(cls, file: torch.Tensor) -> "SharedWeights":
        from cloister.compute.gpu.memory import SharedMemory

        memory = SharedMemory.create(file.nbytes)
        memory.bytes[: file.nbytes].copy_(file)
        torch.cuda.synchronize()
        memory.protect()
        return cls(file, memory)

    @classmethod
    def adopted(cls, file: torch.Tensor, descriptor: int) -> "SharedWeights":
        """The caller closes the descriptor."""
        from cloister.compute.gpu.memory import SharedMemory

        return cls(file, SharedMemory.adopt(descriptor, file.nbytes, writes=False))

    def export(self) -> int:
        return self._memory.export()

    def find(self, part: torch.Tensor) -> torch.Tensor | None:
        offset = part.data_ptr() - self._file.data_ptr()
        if offset < 0 or offset + part.nbytes > self._file.nbytes or not part.is_contiguous():
            return None
        return self._bytes[offset : offset + part.nbytes].view(part.dtype).view(part.shape)
