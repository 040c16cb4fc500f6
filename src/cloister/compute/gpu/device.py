"""The GPU as a device: opened by each process for itself, its memory, recordings, and both ends of its links."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from cloister.compute.base import AttentionShape, CacheShape, Device, KVCache, LinkAnswerer
from cloister.compute.gpu.cache import GpuCache, on_gpu
from cloister.compute.gpu.find import devices
from cloister.compute.gpu.kernels import GpuKernels
from cloister.compute.gpu.mailbox import Seats, partition_refusal, percentage_of
from cloister.errors import SetupError

if TYPE_CHECKING:
    from cloister.compute.gpu.lending import GpuHolder, LentCache
    from cloister.compute.gpu.link import GpuAsker
    from cloister.compute.gpu.weights import SharedWeights

RESERVED_LARGE, RESERVED_SMALL, SMALL = 384 * 2**20, 32, 2**20
"""Of memory for a sealed process beside its cache: one large piece, and so many small ones."""
MPS_FOLDER = "CUDA_MPS_PIPE_DIRECTORY"
PRIORITY, BELOW_NORMAL = "CUDA_MPS_CLIENT_PRIORITY", "1"
QUEUES = "4"
"""That streams share. With the two that a client of MPS has by itself, all waits behind a stream that waits (seen)."""


def _full() -> SetupError:
    return SetupError(
        "The GPU's memory is full: every process that computes there holds a KV cache, and in turns the weights.",
        hint="Keep fewer vaults (--max-vaults, --spare-vaults) or smaller caches (--kv-cache-mib, --vault-kv-mib).",
    )


class GpuDevice(Device):
    """Computes on the current CUDA device, once it is open. It has links where processes compute beside each other, as
    clients of MPS: one that waits for another must not hold the GPU meanwhile."""

    survives_fork = False
    records = True

    def __init__(self) -> None:
        self.kernels: GpuKernels = GpuKernels()
        self._open = False
        self._mps = ""
        self._weights: SharedWeights | None = None

    @property
    def files(self) -> tuple[str, ...]:
        return devices()

    def share(self, folder: str, attention: int = 0, *, vaults_apart: bool = False) -> None:
        self._mps, self.shared, self.attention_processes = folder, True, attention
        self.vaults_apart = vaults_apart and attention > 0  # one that answers itself does so beside the service
        self.most_vaults = Seats.beside(attention).places

    @property
    def lost(self) -> bool:
        """CUDA's errors of this kind stay until the process ends."""
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return True
        return False

    def open(self, *, waits: bool = False, beside: bool = True, yields: bool = False) -> None:
        if not beside:
            os.environ.pop(MPS_FOLDER, None)  # be it that of somebody else's MPS
        elif self._mps:
            os.environ[MPS_FOLDER] = self._mps
        if yields and beside:
            os.environ[PRIORITY] = BELOW_NORMAL
        if waits:
            os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = QUEUES
        attends = waits and self.attention_processes > 0
        if attends:
            os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(percentage_of(self.attention_processes))
        try:
            torch.zeros(1, device="cuda")
        except RuntimeError as failure:
            first = str(failure).partition("\n")[0]
            raise SetupError(f"The GPU does not answer: {first}", hint="Look at what `nvidia-smi` says.") from failure
        if attends:
            from cloister.compute.gpu.memory import leave_no_stack

            leave_no_stack()
        self._open = True

    def hold_weights(self, file: torch.Tensor, memory: int | None = None) -> int | None:
        """Where processes compute in turns, each has its own."""
        from cloister.compute.gpu.weights import SharedWeights

        if not self._mps:
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
        """Before the device is open it stays where it is: a decoder made then describes a model and cannot compute."""
        if self._weights is not None and (held := self._weights.find(tensor)) is not None:
            return held
        try:
            return tensor.to("cuda") if self._open else tensor
        except torch.OutOfMemoryError as failure:
            raise _full() from failure

    def record(self, run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        """A CUDA graph of what `run` launches. It runs twice now: once to make what it needs, once recorded."""
        run()
        kept: list[torch.Tensor] = []
        repeat = self.capture(lambda: kept.append(run()))

        def replay() -> torch.Tensor:
            repeat()
            return kept[0]

        return replay

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """A CUDA graph of what `run` launches. Waits for this stream alone: others may wait for another process, which
        `torch.cuda.graph` would wait for."""
        torch.cuda.current_stream().synchronize()
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                run()
            finally:
                graph.capture_end()
        return graph.replay

    def partition_refusal(self, model: AttentionShape) -> str:
        return (
            partition_refusal(model)
            if self._mps
            else "On a GPU, prompts are partitioned under MPS, which is not there."
        )

    def asker(self, model: AttentionShape, patience_ms: int) -> GpuAsker:
        from cloister.compute.gpu.link import GpuAsker

        return GpuAsker(model, patience_ms, Seats.beside(self.attention_processes))

    def answerer(
        self, model: AttentionShape, cache: KVCache, question: int, answer: int, patience_ms: int = 200
    ) -> LinkAnswerer:
        """`question` is the mailbox, for both directions, where the vault answers itself."""
        from cloister.compute.gpu.lending import LentAnswerer, LentCache
        from cloister.compute.gpu.link import GpuAnswerer

        self.kernels.crowded = True
        if isinstance(cache, LentCache):
            return LentAnswerer(model, cache)
        return GpuAnswerer(self, model, on_gpu(cache), question, patience_ms)

    def lent_cache(self, shape: CacheShape, blocks: int, memory: int) -> LentCache:
        from cloister.compute.gpu.lending import LentCache

        self.kernels.suit(shape.dim)
        return LentCache(shape, blocks, memory)

    def holder(
        self, model: AttentionShape, blocks: int, places: int, mailbox: int, patience_ms: int = 200
    ) -> GpuHolder:
        from cloister.compute.gpu.lending import GpuHolder

        seats = Seats.beside(self.attention_processes)
        return GpuHolder(self, model, blocks, places, mailbox, patience_ms, seats)
