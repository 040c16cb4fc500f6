"""The GPU as a device. It has links only under MPS: a process that waits for another must not hold the GPU."""

import os
from collections.abc import Callable
from contextlib import suppress

import torch

from cloister.compute.base import AttentionShape, CacheShape, Device, KVCache, LinkAnswerer
from cloister.compute.gpu.arena import ArenaAnswerer, ArenaCache, GpuAttentionHost
from cloister.compute.gpu.cache import GpuCache
from cloister.compute.gpu.find import devices
from cloister.compute.gpu.kernels import GpuKernels
from cloister.compute.gpu.link import GpuAsker
from cloister.compute.gpu.mailbox import MailboxSlots, partition_refusal, percentage_of
from cloister.compute.gpu.memory import leave_no_stack
from cloister.compute.gpu.program import capture
from cloister.compute.gpu.weights import SharedWeights
from cloister.errors import SetupError
from cloister.placement import Placement, Role

# for a sealed process beside its cache: one large piece, and a number of small ones
RESERVED_LARGE, RESERVED_SMALL, SMALL = 384 * 2**20, 32, 2**20
MPS_FOLDER = "CUDA_MPS_PIPE_DIRECTORY"
PRIORITY, BELOW_NORMAL = "CUDA_MPS_CLIENT_PRIORITY", "1"
QUEUES = "4"  # that streams share: with a client's default of two, all work waited behind a stream that waits (seen)


def _full() -> SetupError:
    return SetupError(
        "The GPU's memory is full: every process that computes there holds a KV cache, and in turns the weights.",
        hint="Keep fewer vaults (--max-vaults, --spare-vaults) or smaller caches (--kv-cache-mib, --vault-kv-mib).",
    )


class GpuDevice(Device):
    survives_fork = False
    records = True

    def __init__(self) -> None:
        self.kernels: GpuKernels = GpuKernels()
        self._open = False
        self._mps_folder = ""
        self._weights: SharedWeights | None = None

    @property
    def files(self) -> tuple[str, ...]:
        return devices()

    def can_share(self, model: AttentionShape) -> bool:
        return not partition_refusal(model)

    def share(self, mps_folder: str, attention_processes: int) -> None:
        self._mps_folder, self.placement = mps_folder, Placement.on_mps(attention_processes)

    @property
    def lost(self) -> bool:
        """CUDA's errors of this kind stay until the process ends."""
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return True
        return False

    def open(self, role: Role = "service") -> None:
        placement = self.placement
        os.environ.pop(MPS_FOLDER, None)  # the operator's own MPS is not this node's
        if placement.uses_mps:
            os.environ[MPS_FOLDER] = self._mps_folder
        if placement.yields(role):
            os.environ[PRIORITY] = BELOW_NORMAL
        attends = placement.uses_mps and placement.answers(role)
        if attends:
            os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = QUEUES
            os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(percentage_of(placement.attention_processes))
        try:
            torch.zeros(1, device="cuda")
        except RuntimeError as failure:
            first = str(failure).partition("\n")[0]
            raise SetupError(f"The GPU does not answer: {first}", hint="Look at what `nvidia-smi` says.") from failure
        if attends:
            leave_no_stack()
        self._open = True

    def finish(self) -> None:
        """A client of MPS that ends while its kernel runs leaves the kernel without memory: a fault, which ends all."""
        if self._open:
            with suppress(RuntimeError):  # the device is lost
                torch.cuda.synchronize()

    def hold_weights(self, file: torch.Tensor, memory: int | None = None) -> int | None:
        """Where processes compute in turns, each has its own."""
        if not self.placement.uses_mps:
            return None
        if memory is not None:
            self._weights = SharedWeights.adopted(file, memory)
            return None
        self._weights = SharedWeights.copied(file)
        return self._weights.export()

    def reserve(self) -> None:
        """Under MPS every allocation opens a file. torch keeps what it is given back, large and small pieces apart."""
        try:
            held = [torch.empty(RESERVED_LARGE, dtype=torch.uint8, device="cuda")]
            held += [torch.empty(SMALL, dtype=torch.uint8, device="cuda") for _ in range(RESERVED_SMALL)]
        except torch.OutOfMemoryError as failure:
            raise _full() from failure
        del held

    def cache(self, shape: CacheShape, blocks: int) -> GpuCache:
        self.kernels.suit(shape.dim)
        try:
            return GpuCache(shape, blocks)
        except torch.OutOfMemoryError as failure:
            raise _full() from failure

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """Before the device is open a tensor stays: a decoder made then describes a model and cannot compute."""
        if self._weights is not None and (held := self._weights.find(tensor)) is not None:
            return held
        try:
            return tensor.to("cuda") if self._open else tensor
        except torch.OutOfMemoryError as failure:
            raise _full() from failure

    def record(self, run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        run()
        kept: list[torch.Tensor] = []
        repeat = capture(lambda: kept.append(run()))

        def replay() -> torch.Tensor:
            repeat()
            return kept[0]

        return replay

    def partition_refusal(self, model: AttentionShape) -> str:
        mps = self.placement.uses_mps
        return partition_refusal(model) if mps else "On a GPU prompts are partitioned under MPS, which is off here."

    def asker(self, model: AttentionShape, patience_ms: int) -> GpuAsker:
        return GpuAsker(model, patience_ms, MailboxSlots(self.placement))

    def answerer(self, model: AttentionShape, cache: KVCache, question: int = -1, answer: int = -1) -> LinkAnswerer:
        """Both descriptors are the arena's, which the cache maps already."""
        if not isinstance(cache, ArenaCache):
            raise ValueError("only a cache in an attention process's arena can be asked")
        self.kernels.crowded = True
        return ArenaAnswerer(model, cache)

    def vault_cache(self, shape: CacheShape, blocks: int, memory: int) -> GpuCache:
        if not self.placement.uses_mps:
            return self.cache(shape, blocks)
        self.kernels.suit(shape.dim)
        return ArenaCache(shape, blocks, memory)

    def attention_host(
        self, model: AttentionShape, blocks: int, vaults: int, mailbox: int, patience_ms: int
    ) -> GpuAttentionHost:
        slots = MailboxSlots(self.placement)
        return GpuAttentionHost(self.kernels, model, blocks, vaults, mailbox, patience_ms, slots)
