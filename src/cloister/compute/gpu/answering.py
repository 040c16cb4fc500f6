"""Streams that answer a mailbox's questions: kernels launched ahead that wait for gates, of steps or of layers."""

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch
from cuda.bindings import driver

from cloister.compute.base import AttentionShape
from cloister.compute.gpu.kernels import PART, GpuKernels
from cloister.compute.gpu.mailbox import (
    GATE_BYTES,
    GATE_WORD,
    MOST_ASKED,
    MOST_PATIENCE_MS,
    ArenaShape,
    MailboxShape,
    percentage_of,
)
from cloister.compute.gpu.memory import SharedMemory
from cloister.compute.gpu.program import capture, i32
from cloister.compute.gpu.queries import MOST_VALUES, TASKS
from cloister.errors import SetupError

OPEN = 1
AHEAD = 32
LAYERS_AHEAD = 200
# the thread looks for answered steps; a stream holds about a thousand launches, and more of them would wait
LOOK_S = 0.001
NOTES = 8 + 4 * MOST_ASKED
KEPT = 16  # items whose queries a block keeps until it hashes them (answer.cuh)
COMING = 3  # blocks on a processor that come for a layer, of four that fit
CLOSING = 1  # the word of a process's notes that says that it closes (answer.cuh)
MOST_LAUNCHES = 2**31 - 1  # the last number is the rehearsal's
LINGER_S = 0.05  # how long a process that ends still answers: its service may be in a step that asks it


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks that stay on the GPU while a step lasts, and those that come for a layer."""

    staying: int
    coming: int

    @classmethod
    def among(cls, processors: int, processes: int) -> "Blocks":
        """One block stays on each processor: products leave room for one (linear.cuh). Three come: see link.cuh."""
        each = max(1, processors * 100 // percentage_of(processes) // processes)
        return cls(each, COMING * each)


@dataclass(frozen=True, slots=True)
class Arenas:
    """Several vaults' arenas in a row; `stride` in bytes."""

    address: int
    stride: int
    shape: ArenaShape


def wait_for(stream: torch.cuda.Stream, address: int, value: int) -> None:
    equal = int(driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ)
    (error,) = driver.cuStreamWaitValue32(driver.CUstream(stream.cuda_stream), address, value, equal)
    if error:
        raise SetupError(f"The GPU's streams cannot wait for memory ({error.name}).")


class AnswerStream:
    """Answers all layers of a step for all arenas, by kernels that wait for gates. Readable when the device is lost."""

    def __init__(
        self,
        kernels: GpuKernels,
        model: AttentionShape,
        mailbox: SharedMemory,
        shape: MailboxShape,
        arenas: Arenas,
        patience_ms: int,
        blocks: Blocks,
    ) -> None:
        self._kernels, self._model, self._mailbox, self._shape = kernels, model, mailbox, shape
        self._arenas, self._blocks = arenas, blocks
        self._patience_ns = min(patience_ms, MOST_PATIENCE_MS) * 1_000_000
        kv_heads, dim = model.cache_shape.kv_heads, model.cache_shape.dim
        self._parts = torch.zeros(shape.users * model.heads * arenas.shape.groups * TASKS * (dim + PART), device="cuda")
        self._tickets = torch.zeros(shape.users * kv_heads, dtype=torch.int32, device="cuda")
        self._kept = torch.zeros(blocks.coming * KEPT * MOST_VALUES, dtype=torch.int32, device="cuda")
        self._notes = torch.zeros(NOTES, dtype=torch.int32, device="cuda")
        self._scales = torch.tensor([scale * math.log2(math.e) for scale in model.scales], device="cuda")
        self._launched = 0
        self._boxes = shape.boxes(mailbox.address)
        ahead = max(2, LAYERS_AHEAD // shape.layers)
        self._staying, self._coming = _Queue(self._answer_step, AHEAD), _Queue(lambda: self._recorded(), ahead)
        self._launching = threading.Lock()
        self._running = threading.Event()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closed = False

    def rehearse(self) -> None:
        """Use every kernel once, unasked: a sealed process loads none."""
        self._launch(0, self._shape.layers, MOST_LAUNCHES)
        self.drain()
        self._recorded = capture(self._record_layers)
        for _ in range(2):
            self._launch_ahead()
            self.drain()

    def keep_launching(self) -> None:
        threading.Thread(target=self._keep_launching, daemon=True).start()
        self._running.wait()

    def fileno(self) -> int:
        return self._event

    def _launch_ahead(self) -> None:
        self._staying.launch_ahead()
        self._coming.launch_ahead()

    def drain(self) -> None:
        """While no step asks: what was launched ahead comes to an end, and the gates are closed again."""
        self._notes[CLOSING] = 1
        torch.cuda.current_stream().synchronize()
        self._set_gates(OPEN)
        self._staying.drain()
        self._coming.drain()
        self._set_gates(0)
        self._notes[CLOSING] = 0
        torch.cuda.current_stream().synchronize()

    def leave(self) -> None:
        """Leave nothing that runs or waits: a client of MPS that ends with a running kernel ends all others."""
        if self._staying.flies:
            time.sleep(LINGER_S)
        with self._launching, suppress(RuntimeError):
            self._closed = True
            self.drain()

    def _keep_launching(self) -> None:
        try:
            self._staying.drain()  # its first call
            self._running.set()
            while True:
                with self._launching:
                    if self._closed:
                        return
                    self._launch_ahead()
                time.sleep(LOOK_S)
        except RuntimeError:  # the device is lost: CUDA's errors stay
            os.eventfd_write(self._event, 1)

    def _set_gates(self, value: int) -> None:
        first, count = self._mailbox.address + GATE_WORD, self._shape.layers + 1
        (error,) = driver.cuMemsetD2D32(first, GATE_BYTES, value, 1, count)
        if error:
            raise RuntimeError(f"a link's gates cannot be set ({error.name})")

    def _answer_step(self) -> None:
        """By blocks that stay, which know each other by the launch's number."""
        self._launched = self._launched % (MOST_LAUNCHES - 1) + 1
        self._wait_for_gate(self._shape.layers)
        self._launch(0, self._shape.layers, self._launched)

    def _record_layers(self) -> None:
        for layer in range(self._shape.layers):
            self._wait_for_gate(layer)
            self._launch(layer, layer + 1, 0)

    def _wait_for_gate(self, number: int) -> None:
        wait_for(torch.cuda.current_stream(), self._mailbox.address + number * GATE_BYTES + GATE_WORD, OPEN)

    def _launch(self, first: int, end: int, number: int) -> None:
        model, shape, arena = self._model, self._model.cache_shape, self._arenas.shape
        first_arena, stride = self._arenas.address, self._arenas.stride
        self._kernels.launch(
            "answer",
            (self._blocks.staying if number else self._blocks.coming,),
            128,
            *(first_arena + arena.header, arena.block_bytes // 2, arena.block_bytes // shape.layers),
            *(self._scales, self._parts),
            *map(i32, (self._shape.users, model.heads, shape.kv_heads, arena.groups)),
            *(first_arena, stride, stride),
            *map(i32, (arena.slots, 4 * arena.words, arena.blocks)),
            *(arena.keys_at, arena.records_at, self._kept),
            *(self._boxes.start, self._boxes.step, self._mailbox.address, self._tickets, self._notes),
            *map(i32, (shape.layers, first, end, number)),
            self._patience_ns,
            overlap=False,
            beside=bool(number),
        )


class _Queue:
    """A stream with `ahead` launches under way."""

    def __init__(self, launch: Callable[[], None], ahead: int) -> None:
        self._launch, self._ahead = launch, ahead
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._flying: deque[torch.cuda.Event] = deque()
        self._landed = deque(torch.cuda.Event() for _ in range(ahead))  # type: ignore[no-untyped-call]

    @property
    def flies(self) -> bool:
        return bool(self._flying)

    def launch_ahead(self) -> None:
        while self._flying and self._flying[0].query():  # type: ignore[no-untyped-call]
            self._landed.append(self._flying.popleft())
        with torch.cuda.stream(self._stream):
            while len(self._flying) < self._ahead:
                self._launch()
                self._landed[0].record()
                self._flying.append(self._landed.popleft())

    def drain(self) -> None:
        self._stream.synchronize()
        self._landed += self._flying
        self._flying.clear()
