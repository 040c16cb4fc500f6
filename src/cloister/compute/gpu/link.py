"""Both ends of a link on the GPU: whom a recorded step asks, and a vault that answers for its prompts itself.

The words and the waiting are in link.cuh. The service makes all mailboxes before it is sealed; each is mapped by an
attention process (lending.py), or by one vault at a time, before that is sealed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cloister.compute.base import AttentionShape, LinkAnswerer, LinkAsker
from cloister.compute.gpu.answering import MOST_PATIENCE_MS, AnswerStream, Blocks, Slots
from cloister.compute.gpu.cache import GpuCache
from cloister.compute.gpu.device import GpuDevice
from cloister.compute.gpu.exposure import ArenaShape
from cloister.compute.gpu.kernels import GpuKernels, i32
from cloister.compute.gpu.mailbox import MOST_ASKED, SLOTS, STAYING_ROWS, Aims, MailboxShape, Seat, Seats, most_rows
from cloister.compute.gpu.memory import SharedMemory
from cloister.compute.gpu.program import Argument
from cloister.compute.layout import RemoteRows
from cloister.errors import SetupError

AT_ONCE = 1
"""Slots that a vault exposes at once, of those there is room for: a check that withdrew one of several hung."""
BLOCKS = Blocks(4, 8)
"""Of a vault that answers itself: those of all that stay take no more than two places on a processor, and of all that
come no more than `COMING`."""


class Asking:
    """Whom the rows of one recorded step ask, as its kernels need it (mailbox.aimed)."""

    def __init__(self, asker: GpuAsker, asks: torch.Tensor) -> None:
        self._asker, self._asks, self._boxes, self._gates = asker, asks, asks[0], asks[1]
        self.stays = asks.shape[1] <= STAYING_ROWS
        """Whether those who answer may stay on the GPU for the step: its products leave them room."""

    def warning(self, layer: int) -> tuple[Argument, ...]:
        """What `add_and_norm` needs to say that a layer begins."""
        return (self._gates if self.stays else None, self._asker.steps, i32(layer))

    def opening(self, layer: int) -> tuple[Argument, ...]:
        """What the product that gives a layer's queries needs to open its gates."""
        asker, rows = self._asker, self._asks.shape[1]
        return (asker.started, self._gates, asker.steps, *map(i32, (rows, layer, asker.shape.layers)))

    def posting(self, layer: int) -> tuple[Argument, ...]:
        """What `rotate_and_store` needs to post a layer's queries."""
        asker = self._asker
        return (self._boxes, asker.steps, i32(layer), i32(asker.shape.layers))

    def gathering(self, layer: int) -> tuple[Argument, ...]:
        """What `merge_with_vaults` needs to take the answers."""
        asker = self._asker
        return (self._boxes, asker.steps, i32(layer), i32(asker.shape.layers), asker.late, asker.patience_ns)

    def begin_step(self, kernels: GpuKernels) -> None:
        """Before anything else of a step: say which rows it asks."""
        asker, rows = self._asker, self._asks.shape[1]
        state = (asker.steps, asker.started, asker.late)
        sizes = (i32(asker.shape.layers), i32(self.stays))
        kernels.launch("begin_step", (1,), MOST_ASKED, self._asks, i32(rows), *state, *sizes)


class GpuAsker(LinkAsker):
    """The service's end of all its links. A row whose answer is late by more than the patience is marked on the device
    and asks no more; its result is void, and its link is broken. The number of a step never comes again."""

    def __init__(self, model: AttentionShape, patience_ms: int, seats: Seats) -> None:
        self._seats, self.capacity = seats, seats.each
        self.most_rows = most_rows(model.cache_shape.kv_heads)
        self.shape = MailboxShape.of(model, self._seats.slots)
        self.patience_ns = min(patience_ms, MOST_PATIENCE_MS) * 1_000_000
        self.steps = torch.zeros(2, dtype=torch.int32, device="cuda")
        """The number of the step, and again where all who are asked stay for it."""
        self.started = torch.zeros(self.shape.layers, dtype=torch.int32, device="cuda")
        self.late = torch.zeros(MOST_ASKED, dtype=torch.int32, device="cuda")
        self._found_late = torch.zeros(MOST_ASKED, dtype=torch.int32).pin_memory()
        self._mailboxes = [SharedMemory.create(self.shape.size) for _ in range(self._seats.mailboxes)]
        self._taken: dict[int, int] = {}
        """Places by link."""
        self._aims = Aims(self.shape, lambda: {link: self._seat_of(place) for link, place in self._taken.items()})
        self._asked: dict[int, int] = {}
        self._failed: dict[int, str] = {}

    def export(self) -> list[int]:
        return [mailbox.export() for mailbox in self._mailboxes]

    def attach(self, link: int, question: int, answer: int) -> None:
        raise SetupError("On a GPU the service makes the links' memory itself.")

    def attach_at(self, link: int, place: int) -> None:
        """Nothing is left in the boxes of who was there before."""
        if link in self._taken or place in self._taken.values() or not 0 <= place < self._seats.places:
            raise SetupError("A place is taken by another link, or there is no such place.")
        self._wipe(place)
        self._taken[link] = place
        self._aims.forget()

    def detach(self, link: int) -> None:
        self._failed.pop(link, None)
        self._asked = {row: asked for row, asked in self._asked.items() if asked != link}
        self._aims.forget()
        if (place := self._taken.pop(link, None)) is not None:
            self._wipe(place)

    def _wipe(self, place: int) -> None:
        """Its boxes, and the gates of a mailbox that has no other: where several sit, they are for others too."""
        number, slots = self._seats.at(place)
        mailbox, shape = self._mailboxes[number], self.shape
        if self._seats.attention:
            mailbox.wipe(shape.gates + slots[0] * shape.box, len(slots) * shape.box)
        else:
            mailbox.wipe()

    def _seat_of(self, place: int) -> Seat:
        number, slots = self._seats.at(place)
        return self._mailboxes[number].address, slots

    def aim(self, remotes: Sequence[RemoteRows], rows: int) -> torch.Tensor:
        self._take_late()
        asks, failed = self._aims.of(remotes, rows)
        self._failed |= failed
        self._asked = {row: remote.link for remote in remotes for row in remote.rows}
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
            late = self._found_late.tolist()
            for row, link in self._asked.items():
                if late[row]:
                    self._failed.setdefault(link, "vault_timeout")
            self._asked = {}


class GpuAnswerer(LinkAnswerer):
    """A vault's end where it answers itself, out of its own cache. Steps are launched ahead while a slot is exposed."""

    slots = AT_ONCE

    def __init__(
        self, device: GpuDevice, model: AttentionShape, cache: GpuCache, mailbox: int, patience_ms: int
    ) -> None:
        self._model = model
        shape = MailboxShape.of(model, SLOTS)
        self._arena = ArenaShape(cache.blocks, model.cache_shape.dim, cache.block_bytes, SLOTS)
        self._words = torch.zeros(SLOTS, self._arena.words, dtype=torch.int32, device="cuda")
        slots = Slots(self._words.data_ptr(), 0, cache.layer(0).data_ptr(), 0)
        adopted = SharedMemory.adopt(mailbox, shape.size)
        self._stream = AnswerStream(
            device, model, adopted, shape, slots, self._arena, patience_ms, BLOCKS, lambda: bool(self._exposed)
        )
        self._exposed = set[int]()

    def start(self) -> None:
        self._stream.rehearse()
        self.expose(0, [0], start=0, end=1, rotation=0)
        self.withdraw(0)
        self._stream.keep_launching()

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def verdict(self) -> str:
        return self._stream.verdict

    def free_slot(self) -> int | None:
        return None if len(self._exposed) >= AT_ONCE else min(set(range(SLOTS)) - self._exposed)

    def expose(self, slot: int, blocks: Sequence[int], *, start: int, end: int, rotation: int) -> None:
        if not 0 <= slot < SLOTS or slot in self._exposed:
            raise ValueError("the slot is taken or does not exist")
        self._words[slot] = self._arena.written(blocks, start, end, self._model.rotation(rotation)).to("cuda")
        torch.cuda.current_stream().synchronize()
        with self._stream.changed:
            self._exposed.add(slot)
            self._stream.launch_ahead()
            self._stream.changed.notify()

    def withdraw(self, slot: int) -> None:
        with self._stream.changed:
            if slot in self._exposed and len(self._exposed) == 1:
                self._exposed.remove(slot)
                self._stream.drain()
            self._exposed.discard(slot)
        self._words[slot] = 0
        torch.cuda.current_stream().synchronize()

    def leave(self) -> None:
        self._stream.leave()
