"""Both ends of a link on the GPU: whom a recorded step asks, and a vault's answers for its prompts.

The words and the waiting are in link.cuh. The service makes all mailboxes before it is sealed; each is mapped by one
vault at a time, which is not sealed yet.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
import torch
from cuda.bindings import driver

from cloister.compute.base import AttentionShape, LinkAnswerer, LinkAsker
from cloister.compute.gpu.cache import GpuCache
from cloister.compute.gpu.kernels import GROUP_TOKENS, PART, GpuDevice, GpuKernels, i32
from cloister.compute.gpu.mailbox import GATE_BYTES, MailboxShape, aimed
from cloister.compute.gpu.memory import SharedMemory
from cloister.compute.gpu.program import Argument
from cloister.compute.layout import BLOCK_TOKENS, RemoteRows
from cloister.errors import SetupError

OPEN = 1
SLOTS = 16
AT_ONCE = 1
"""Slots that a vault exposes at once, of those there is room for: a check that withdrew one of several hung."""
PLACES = 44
"""Links at most: MPS has 48 clients."""
MOST_ROWS = 64
MOST_GROUPS = 255
"""A ticket counts them in eight bits (link.cuh)."""
MOST_PATIENCE_MS = 200
LANES, GROUPS = (1, 4), (1, 4, 16)
"""Grids for slots and groups of a prompt. Blocks take what is more in turns: a grid is a matter of speed."""
MOST_WAITING = 200
LOOK_S = 0.001
"""Layers that a vault launches ahead, of some steps, and how often it looks whether some were asked for. A stream holds
about a thousand launches; who launches more waits until it is asked."""
LINGER_S = 0.05
"""How long a vault that ends still answers: its service may be in a step that asks it, and would wait in vain."""


class Asking:
    """Whom the rows of one recorded step ask, as its kernels need it: [boxes, gates to open][row], 0 for none."""

    def __init__(self, asker: GpuAsker, asks: torch.Tensor) -> None:
        self._asker, self._boxes, self._gates, self._rows = asker, asks[0], asks[1], asks.shape[1]

    def posting(self, layer: int) -> tuple[Argument, ...]:
        """What `rotate_and_store` needs to post a layer's queries and to open the gates."""
        asker = self._asker
        return (self._boxes, asker.steps, i32(layer), i32(asker.shape.layers), asker.started, self._gates)

    def gathering(self, layer: int) -> tuple[Argument, ...]:
        """What `merge_with_vaults` needs to take the answers."""
        asker = self._asker
        return (self._boxes, asker.steps, i32(layer), i32(asker.shape.layers), asker.late, asker.patience_ns)

    def begin_step(self, kernels: GpuKernels) -> None:
        """Before anything else of a step: say which rows it asks."""
        asker = self._asker
        sizes = (i32(asker.shape.layers), i32(asker.shape.heads))
        state = (asker.steps, asker.started, asker.late)
        kernels.launch("begin_step", (1,), 64, self._boxes, self._gates, i32(self._rows), *state, *sizes)


class GpuAsker(LinkAsker):
    """The service's end of all its links. A row whose answer is late by more than the patience is marked on the device
    and asks no more; its result is void, and its link is broken. The number of a step never comes again."""

    capacity = SLOTS

    def __init__(self, model: AttentionShape, patience_ms: int) -> None:
        self.shape = MailboxShape.of(model, SLOTS)
        self.patience_ns = min(patience_ms, MOST_PATIENCE_MS) * 1_000_000
        self.steps = torch.zeros(1, dtype=torch.int32, device="cuda")
        self.started = torch.zeros(self.shape.layers, dtype=torch.int32, device="cuda")
        self.late = torch.zeros(MOST_ROWS, dtype=torch.int32, device="cuda")
        self._found_late = torch.zeros(MOST_ROWS, dtype=torch.int32).pin_memory()
        self._places = [SharedMemory.create(self.shape.size) for _ in range(PLACES)]
        self._mailboxes: dict[int, SharedMemory] = {}
        self._asked: dict[int, int] = {}
        self._failed: dict[int, str] = {}

    def export(self) -> list[int]:
        return [mailbox.export() for mailbox in self._places]

    def attach(self, link: int, question: int, answer: int) -> None:
        raise SetupError("On a GPU the service makes the links' memory itself.")

    def seat(self, link: int, place: int) -> None:
        """Nothing is left in the mailbox of who was there before."""
        mailbox = self._places[place]
        if link in self._mailboxes or mailbox in self._mailboxes.values():
            raise SetupError("A place is taken by another link.")
        mailbox.wipe()
        self._mailboxes[link] = mailbox

    def detach(self, link: int) -> None:
        self._failed.pop(link, None)
        self._asked = {row: asked for row, asked in self._asked.items() if asked != link}
        if (mailbox := self._mailboxes.pop(link, None)) is not None:
            mailbox.wipe()

    def aim(self, remotes: Sequence[RemoteRows], rows: int) -> torch.Tensor:
        self._take_late()
        known = {link: mailbox.address for link, mailbox in self._mailboxes.items()}
        asks, failed = aimed(self.shape, known, remotes, rows)
        self._failed |= failed
        self._asked = {row: remote.link for remote in remotes for row in remote.rows.tolist()}
        return asks

    def through(self, asks: torch.Tensor) -> Asking:
        """For the kernels of a step whose batch has these numbers in the GPU's memory."""
        return Asking(self, asks)

    def broken(self) -> dict[int, str]:
        self._take_late()
        failed, self._failed = self._failed, {}
        return failed

    def _take_late(self) -> None:
        """Wait for the last step that asked, and learn which of its rows were late."""
        if self._asked:
            self._found_late.copy_(self.late, non_blocking=True)
            torch.cuda.current_stream().synchronize()
            for row, link in self._asked.items():
                if self._found_late[row]:
                    self._failed.setdefault(link, "vault_timeout")
            self._asked = {}


class GpuAnswerer(LinkAnswerer):
    """A vault's end. One recorded step answers every layer for all slots. While a slot is exposed, some are launched
    ahead by a thread; between layers their stream waits for a gate without holding a processor."""

    def __init__(
        self, device: GpuDevice, model: AttentionShape, cache: GpuCache, mailbox: int, patience_ms: int
    ) -> None:
        self._device, self._model, self._cache = device, model, cache
        self._shape = MailboxShape.of(model, SLOTS)
        self._patience_ns = min(patience_ms, MOST_PATIENCE_MS) * 1_000_000
        self._mailbox = SharedMemory.adopt(mailbox, self._shape.size)
        kv_heads, dim = cache.shape.kv_heads, cache.shape.dim
        self._most_groups = min(MOST_GROUPS, -(-cache.blocks * BLOCK_TOKENS // GROUP_TOKENS))
        self._tables = torch.zeros(SLOTS, cache.blocks, dtype=torch.int32, device="cuda")
        self._lengths = torch.zeros(SLOTS, dtype=torch.int32, device="cuda")
        self._cosine, self._sine = (torch.zeros(SLOTS, dim, device="cuda") for _ in range(2))
        size = SLOTS * model.heads * self._most_groups * (dim + PART)
        self._parts = torch.zeros(size, device="cuda")
        self._tickets = torch.zeros(SLOTS * kv_heads, dtype=torch.int32, device="cuda")
        self._own = torch.zeros(2, dtype=torch.int32, device="cuda")
        boxes = self._shape.boxes(self._mailbox.address)
        self._boxes = torch.tensor(boxes, dtype=torch.int64, device="cuda")
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._recorded: dict[tuple[int, int], Callable[[], None]] = {}
        self._exposed: dict[int, int] = {}
        self._flying: deque[torch.cuda.Event] = deque()
        self._changed, self._running = threading.Condition(), threading.Event()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._ahead = max(2, MOST_WAITING // self._shape.layers)
        self._landed = deque(torch.cuda.Event() for _ in range(self._ahead))  # type: ignore[no-untyped-call]
        self._verdict = ""
        self._closed = False

    def start(self) -> None:
        """Record all grids, and expose something once to nobody: a sealed process loads no kernel."""
        for lanes in LANES:
            for groups in GROUPS:
                self._recorded[lanes, groups] = self._record(lanes, groups)
        for step in self._recorded.values():
            with torch.cuda.stream(self._stream):
                for _ in range(self._ahead):
                    step()
            self._drain()
        self.expose(0, [0], start=0, end=1, rotation=0)
        self.withdraw(0)
        threading.Thread(target=self._keep_launching, daemon=True).start()
        self._running.wait()

    def fileno(self) -> int:
        return self._event

    @property
    def verdict(self) -> str:
        return self._verdict

    def free_slot(self) -> int | None:
        return None if len(self._exposed) >= AT_ONCE else min(set(range(SLOTS)) - set(self._exposed))

    def expose(self, slot: int, blocks: Sequence[int], *, start: int, end: int, rotation: int) -> None:
        if not 0 <= slot < SLOTS or slot in self._exposed:
            raise ValueError("the slot is taken or does not exist")
        length = end - start
        fits = 1 <= length <= self._most_groups * GROUP_TOKENS
        fits = fits and -(-length // BLOCK_TOKENS) <= len(blocks) <= self._cache.blocks
        if not fits or not 0 <= min(blocks) <= max(blocks) < self._cache.blocks:
            raise ValueError("the span does not lie in these blocks")
        self._tables[slot, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32, device="cuda")
        self._cosine[slot], self._sine[slot] = self._model.rotation(rotation)
        self._lengths[slot] = length
        torch.cuda.current_stream().synchronize()
        with self._changed:
            self._exposed[slot] = length
            self._launch_ahead()
            self._changed.notify()

    def withdraw(self, slot: int) -> None:
        with self._changed:
            if self._exposed.pop(slot, None) is not None and not self._exposed:
                self._drain()
        self._lengths[slot] = 0
        self._tables[slot] = 0
        torch.cuda.current_stream().synchronize()

    def leave(self) -> None:
        """Leave nothing behind that runs or waits: who ends with a running kernel takes its neighbours along."""
        if self._exposed:
            time.sleep(LINGER_S)
        with self._changed, suppress(RuntimeError):
            self._closed = True
            self._exposed.clear()
            self._changed.notify()
            self._drain()

    def _keep_launching(self) -> None:
        try:
            self._stream.synchronize()  # its first call
            self._running.set()
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._exposed or self._closed)
                    if self._closed:
                        return
                    self._launch_ahead()
                time.sleep(LOOK_S)
        except RuntimeError:  # the device is lost: CUDA's errors stay
            self._verdict = "vault_lost"
            os.eventfd_write(self._event, 1)

    def _launch_ahead(self) -> None:
        while self._flying and self._flying[0].query():  # type: ignore[no-untyped-call]
            self._landed.append(self._flying.popleft())
        lanes = LANES[min(len(self._exposed), 2) - 1] if self._exposed else LANES[0]
        wanted = -(-max(self._exposed.values(), default=1) // GROUP_TOKENS)
        step = self._recorded[lanes, next((groups for groups in GROUPS if groups >= wanted), GROUPS[-1])]
        with torch.cuda.stream(self._stream):
            while len(self._flying) < self._ahead:
                step()
                self._landed[0].record()
                self._flying.append(self._landed.popleft())

    def _drain(self) -> None:
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

    def _set_gates(self, value: int) -> None:
        layers = self._shape.layers
        (error,) = driver.cuMemsetD2D32(self._mailbox.address, GATE_BYTES, value, 1, layers)
        if error:
            raise RuntimeError(f"a link's gates cannot be set ({error.name})")

    def _record(self, lanes: int, groups: int) -> Callable[[], None]:
        """One step's answers in this grid."""

        def answer(layers: int) -> None:
            for layer in range(layers):
                self._wait_for_gate(layer)
                self._answer_layer(layer, lanes, groups)

        if not self._recorded:
            self._answer_layer(0, lanes, groups)  # loads the kernel, which finds nobody
            torch.cuda.current_stream().synchronize()
        return self._device.capture(lambda: answer(self._shape.layers))

    def _wait_for_gate(self, layer: int) -> None:
        equal = int(driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ)
        stream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
        (error,) = driver.cuStreamWaitValue32(stream, self._mailbox.address + layer * GATE_BYTES, OPEN, equal)
        if error:
            raise SetupError(f"The GPU's streams cannot wait for memory ({error.name}).")

    def _answer_layer(self, layer: int, lanes: int, groups: int) -> None:
        cache, model, shape = self._cache, self._model, self._cache.shape
        scale = np.float32(model.scales[layer] * math.log2(math.e))
        self._device.kernels.launch(
            *("answer", (lanes, shape.kv_heads, groups), 128, None, cache.layer(layer)),
            *(None, self._lengths, None, None, self._tables, None, None),
            *(self._cosine, self._sine, self._parts, None, cache.block_stride),
            *map(i32, (self._tables.shape[1], SLOTS, model.heads, shape.kv_heads, 0, self._most_groups)),
            *(scale, self._boxes, self._mailbox.address, self._tickets, self._own),
            *(i32(layer), i32(shape.layers), self._patience_ns),
            overlap=False,
        )
