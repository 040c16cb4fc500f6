"""A stream that answers a mailbox's questions: recorded steps, launched ahead, which wait for gates.

Whose prompts they are, and in whose memory, is not known here (link.py, lending.py).
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from cuda.bindings import driver

from cloister.compute.base import AttentionShape
from cloister.compute.gpu.exposure import ArenaShape
from cloister.compute.gpu.kernels import PART, GpuDevice, i32
from cloister.compute.gpu.mailbox import GATE_BYTES, MailboxShape
from cloister.compute.gpu.memory import SharedMemory
from cloister.errors import SetupError

OPEN = 1
MOST_PATIENCE_MS = 200
MOST_WAITING = 200
LOOK_S = 0.001
"""Layers that are launched ahead, of some steps, and how often one looks whether some were asked for. A stream holds
about a thousand launches; who launches more waits until it is asked."""
LINGER_S = 0.05
"""How long one that ends still answers: its service may be in a step that asks it, and would wait in vain."""

Grid = tuple[int, int]
"""So many blocks for a KV head: slots × groups of a prompt. They take what is asked in turns: a matter of speed."""


@dataclass(frozen=True, slots=True)
class Slots:
    """Where what is exposed lies, and the caches behind it: addresses, and bytes from one vault's to the next's."""

    exposed: int
    stride: int
    cache: int
    cache_stride: int


def wait_for(stream: torch.cuda.Stream, address: int, value: int) -> None:
    """What comes next in this stream waits for a word of memory."""
    equal = int(driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ)
    (error,) = driver.cuStreamWaitValue32(driver.CUstream(stream.cuda_stream), address, value, equal)
    if error:
        raise SetupError(f"The GPU's streams cannot wait for memory ({error.name}).")


class AnswerStream:
    """Answers every layer for all slots, in the grid that `want` says; launched by a thread, and between layers waiting
    for a gate without holding a processor. It becomes readable (`fileno`) when the device is lost."""

    def __init__(
        self,
        device: GpuDevice,
        model: AttentionShape,
        mailbox: SharedMemory,
        shape: MailboxShape,
        slots: Slots,
        arena: ArenaShape,
        patience_ms: int,
        want: Callable[[], Grid | None],
    ) -> None:
        self._device, self._model, self._mailbox, self._shape = device, model, mailbox, shape
        self._slots, self._arena, self._want = slots, arena, want
        self._patience_ns = min(patience_ms, MOST_PATIENCE_MS) * 1_000_000
        kv_heads, dim = model.cache_shape.kv_heads, model.cache_shape.dim
        self._parts = torch.zeros(shape.users * model.heads * arena.groups * (dim + PART), device="cuda")
        self._tickets = torch.zeros(shape.users * kv_heads, dtype=torch.int32, device="cuda")
        self._own = torch.zeros(2, dtype=torch.int32, device="cuda")
        self._boxes = torch.tensor(shape.boxes(mailbox.address), dtype=torch.int64, device="cuda")
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._recorded: dict[Grid, Callable[[], None]] = {}
        self._flying: deque[torch.cuda.Event] = deque()
        self.changed = threading.Condition()
        """To be held, and notified, where it changes what is wanted."""
        self._running = threading.Event()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._ahead = max(2, MOST_WAITING // shape.layers)
        self._landed = deque(torch.cuda.Event() for _ in range(self._ahead))  # type: ignore[no-untyped-call]
        self.verdict = ""
        self._closed = False

    def record(self, grids: Sequence[Grid]) -> None:
        """Record all grids, and use each once for nobody: a sealed process loads no kernel, and one whose stream waits
        would wait for it with all else that is used for the first time."""
        self.drain()
        for grid in grids:
            self._recorded[grid] = self._record(grid)
        for step in self._recorded.values():
            with torch.cuda.stream(self._stream):
                for _ in range(self._ahead):
                    step()
            self.drain()

    def keep_launching(self) -> None:
        """From now on, while a grid is wanted."""
        threading.Thread(target=self._keep_launching, daemon=True).start()
        self._running.wait()

    def fileno(self) -> int:
        return self._event

    def launch_ahead(self) -> None:
        while self._flying and self._flying[0].query():  # type: ignore[no-untyped-call]
            self._landed.append(self._flying.popleft())
        if (grid := self._want()) is None:
            return
        with torch.cuda.stream(self._stream):
            while len(self._flying) < self._ahead:
                self._recorded[grid]()
                self._landed[0].record()
                self._flying.append(self._landed.popleft())

    def drain(self) -> None:
        """Nobody asks: what was launched ahead comes to an end, and the gates are closed again."""
        self._own[1] = 1
        torch.cuda.current_stream().synchronize()
        self._set_gates(OPEN)
        self._stream.synchronize()
        self._landed += self._flying
        self._flying.clear()
        self._set_gates(0)
        self._own[1] = 0
        torch.cuda.current_stream().synchronize()

    def leave(self) -> None:
        """Leave nothing behind that runs or waits: who ends with a running kernel takes its neighbours along."""
        if self._flying:
            time.sleep(LINGER_S)
        with self.changed, suppress(RuntimeError):
            self._closed = True
            self.changed.notify()
            self.drain()

    def _keep_launching(self) -> None:
        try:
            self._stream.synchronize()  # its first call
            self._running.set()
            while True:
                with self.changed:
                    self.changed.wait_for(lambda: self._closed or self._want() is not None)
                    if self._closed:
                        return
                    self.launch_ahead()
                time.sleep(LOOK_S)
        except RuntimeError:  # the device is lost: CUDA's errors stay
            self.verdict = "vault_lost"
            os.eventfd_write(self._event, 1)

    def _set_gates(self, value: int) -> None:
        (error,) = driver.cuMemsetD2D32(self._mailbox.address, GATE_BYTES, value, 1, self._shape.layers)
        if error:
            raise RuntimeError(f"a link's gates cannot be set ({error.name})")

    def _record(self, grid: Grid) -> Callable[[], None]:
        """One step's answers in this grid."""

        def answer(layers: int) -> None:
            for layer in range(layers):
                wait_for(torch.cuda.current_stream(), self._mailbox.address + layer * GATE_BYTES, OPEN)
                self._answer_layer(layer, grid)

        if not self._recorded:
            self._answer_layer(0, grid)  # loads the kernel, which finds nobody
            torch.cuda.current_stream().synchronize()
        return self._device.capture(lambda: answer(self._shape.layers))

    def _answer_layer(self, layer: int, grid: Grid) -> None:
        model, shape, slots, arena = self._model, self._model.cache_shape, self._slots, self._arena
        scale = np.float32(model.scales[layer] * math.log2(math.e))
        lanes, groups = grid
        of_layer = arena.block_bytes // shape.layers
        self._device.kernels.launch(
            *("answer", (lanes, shape.kv_heads, groups), 128, None, slots.cache + layer * of_layer),
            *((None,) * 9 + (self._parts, None, arena.block_bytes // 2)),
            *map(i32, (0, self._shape.users, model.heads, shape.kv_heads, 0, arena.groups)),
            *(scale, slots.exposed, slots.stride, slots.cache_stride, i32(arena.slots), i32(4 * arena.words)),
            *(i32(arena.blocks),),
            *(self._boxes, self._mailbox.address, self._tickets, self._own),
            *(i32(layer), i32(shape.layers), self._patience_ns),
            overlap=False,
        )
