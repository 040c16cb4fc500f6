"""What the kernels of one recorded step need to ask vaults: boxes, gates, and since when to wait (link.cuh)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch

from cloister.compute.base import LinkAsker
from cloister.compute.gpu.mailbox import MOST_ASKED, STAYING_ROWS
from cloister.compute.gpu.program import Argument, i32


@dataclass(frozen=True, slots=True, repr=False)
class AskState:
    """The service's memory on the device for its questions, the same in every step."""

    layers: int
    steps: torch.Tensor  # the step's number, and again where all processes that are asked stay for it
    started: torch.Tensor
    late: torch.Tensor
    patience_ns: int


class StepAsks:
    """Which vaults the rows of one recorded step ask (mailbox.aimed)."""

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
        """The first launch of a step: tell the attention processes which rows it asks."""
        state, rows = self._state, self._asks.shape[1]
        memory = (state.steps, state.started, state.late)
        launch("begin_step", (1,), MOST_ASKED, self._asks, i32(rows), *memory, i32(state.layers), i32(self.stays))


class RecordedAsker(LinkAsker):
    """A link's asking end whose questions the GPU's kernels ask themselves."""

    @abstractmethod
    def step(self, asks: torch.Tensor) -> StepAsks:
        """For the kernels of a step whose batch has these numbers in the GPU's memory (`aim`)."""
