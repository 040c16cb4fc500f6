"""The service's end of its links on the GPU: which attention process a recorded step asks (link.cuh).
The service makes all mailboxes before it is sealed; each is mapped by one attention process before that is sealed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from cloister.compute.base import AttentionShape, LinkAsker
from cloister.compute.gpu.mailbox import (
    MOST_ASKED,
    MOST_PATIENCE_MS,
    STAYING_ROWS,
    Aims,
    Boxes,
    MailboxShape,
    MailboxSlots,
    most_rows,
)
from cloister.compute.gpu.memory import SharedMemory
from cloister.compute.gpu.program import Argument, i32
from cloister.compute.layout import RemoteRows
from cloister.errors import SetupError


@dataclass(frozen=True, slots=True, repr=False)
class AskState:
    """The service's memory on the device for its questions, the same in every step."""

    layers: int
    steps: torch.Tensor  # the step's number, and again where all processes that are asked stay for it
    started: torch.Tensor
    late: torch.Tensor
    patience_ns: int


class StepAsks:
    def __init__(self, state: AskState, asks: torch.Tensor) -> None:
        self._state, self._asks, self._boxes, self._gates = state, asks, asks[0], asks[1]
        self.stays = asks.shape[1] <= STAYING_ROWS

    def warning(self, layer: int) -> tuple[Argument, ...]:
        return (self._gates if self.stays else None, self._state.steps, i32(layer))

    def opening(self, layer: int) -> tuple[Argument, ...]:
        state, rows = self._state, self._asks.shape[1]
        return (state.started, self._gates, state.steps, *map(i32, (rows, layer, state.layers)))

    def posting(self, layer: int) -> tuple[Argument, ...]:
        return (self._boxes, self._state.steps, i32(layer), i32(self._state.layers))

    def gathering(self, layer: int) -> tuple[Argument, ...]:
        state = self._state
        return (self._boxes, state.steps, i32(layer), i32(state.layers), state.late, state.patience_ns)

    def begin_step(self, launch: Callable[..., None]) -> None:
        state, rows = self._state, self._asks.shape[1]
        memory = (state.steps, state.started, state.late)
        launch("begin_step", (1,), MOST_ASKED, self._asks, i32(rows), *memory, i32(state.layers), i32(self.stays))


class GpuAsker(LinkAsker):
    """Its questions are asked by the GPU's kernels. A late row is marked on the device and asks no more; its result is
    void, and its link is broken. The number of a step is used once in a service's life."""

    def __init__(self, model: AttentionShape, patience_ms: int, slots: MailboxSlots) -> None:
        self._slots, self.capacity = slots, slots.each
        self.most_rows = most_rows(model.cache_shape.kv_heads)
        self.shape = MailboxShape.of(model, slots.slots)
        self.state = AskState(
            layers=self.shape.layers,
            steps=torch.zeros(2, dtype=torch.int32, device="cuda"),
            started=torch.zeros(self.shape.layers, dtype=torch.int32, device="cuda"),
            late=torch.zeros(MOST_ASKED, dtype=torch.int32, device="cuda"),
            patience_ns=min(patience_ms, MOST_PATIENCE_MS) * 1_000_000,
        )
        self._found_late = torch.zeros(MOST_ASKED, dtype=torch.int32).pin_memory()
        count = slots.placement.attention_processes
        self._mailboxes = [SharedMemory.create(self.shape.size) for _ in range(count)]
        self._attached: dict[int, int] = {}  # link slots by link
        self._aims = Aims(self.shape, self._boxes)
        self._asked: dict[int, int] = {}
        self._failed: dict[int, str] = {}

    def export(self) -> list[int]:
        return [mailbox.export() for mailbox in self._mailboxes]

    def attach(self, link: int, question: int, answer: int) -> None:
        raise SetupError("On a GPU the service makes the links' memory itself.")

    def attach_slot(self, link: int, slot: int) -> None:
        """The boxes are wiped first, of the slot's last vault."""
        if link in self._attached or slot in self._attached.values() or not 0 <= slot < self._slots.placement.vaults:
            raise SetupError("The link slot is taken, or does not exist.")
        self._wipe(slot)
        self._attached[link] = slot
        self._aims.forget(link)

    def detach(self, link: int) -> None:
        self._failed.pop(link, None)
        self._asked = {row: asked for row, asked in self._asked.items() if asked != link}
        self._aims.forget(link)
        if (slot := self._attached.pop(link, None)) is not None:
            self._wipe(slot)

    def _wipe(self, slot: int) -> None:
        """Its boxes alone: the gates of a mailbox are for its other vaults too."""
        number, slots = self._slots.at(slot)
        self._mailboxes[number].wipe(self.shape.gates + slots[0] * self.shape.box, len(slots) * self.shape.box)

    def _boxes(self) -> dict[int, Boxes]:
        found = {link: self._slots.at(slot) for link, slot in self._attached.items()}
        return {link: (self._mailboxes[number].address, slots) for link, (number, slots) in found.items()}

    def aim(self, remotes: Sequence[RemoteRows], rows: int) -> torch.Tensor:
        self._take_late()
        asks, failed = self._aims.of(remotes, rows)
        self._failed |= failed
        self._asked = {row: remote.link for remote in remotes for row in remote.rows}
        return asks

    def step(self, asks: torch.Tensor) -> StepAsks:
        return StepAsks(self.state, asks)

    def broken(self) -> dict[int, str]:
        self._take_late()
        failed, self._failed = self._failed, {}
        return failed

    def _take_late(self) -> None:
        """Wait for the last step that asked, and learn which of its rows were late."""
        if self._asked:
            self._found_late.copy_(self.state.late, non_blocking=True)
            torch.cuda.current_stream().synchronize()
            late = self._found_late.tolist()
            for row, link in self._asked.items():
                if late[row]:
                    self._failed.setdefault(link, "vault_timeout")
            self._asked = {}
