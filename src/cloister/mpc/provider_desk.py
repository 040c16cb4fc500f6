"""A party's desk for the provider: weights' shares go to the shelf, and the provider hears when they are served."""

from __future__ import annotations

from collections.abc import Callable

from cloister.errors import Unauthorized
from cloister.messages.mpc import AskShelf, Complete, Serving, Stored, Weight, WeightPiece
from cloister.messages.mpc import Shelf as ShelfList
from cloister.mpc.line import Line
from cloister.mpc.shelf import Shelf


class ProviderDesk:
    """One provider at a time. `restocked` is called when the shelf is complete and is not what engines have loaded."""

    def __init__(self, shelf: Shelf, restocked: Callable[[], None]) -> None:
        self._shelf = shelf
        self._restocked = restocked
        self._provider: Line | None = None
        self._waits: Line | None = None
        self._served: bytes | None = None

    def begin(self) -> None:
        """An epoch began with what is on the shelf."""
        self._served = self._shelf.digest
        if self._waits is not None and self._shelf.complete is not None:
            self._waits.post(Serving(self._shelf.complete.model))
            self._waits = None

    def end(self) -> None:
        """The epoch is over."""
        self._served = None

    def gone(self, line: Line) -> None:
        """A connection ended; if it was the provider's, what it left half done is dropped."""
        if line is self._provider:
            self._provider = self._waits = None
            self._shelf.abandon()

    def receive(self, line: Line, message: AskShelf | Weight | WeightPiece | Complete) -> None:
        """What the provider says."""
        if self._provider not in (None, line):
            raise Unauthorized("Another provider is dealing weights.")
        self._provider = line
        match message:
            case AskShelf():
                line.post(ShelfList(self._shelf.weights))
            case Weight():
                self._shelf.announce(message)
            case WeightPiece():
                if (stored := self._shelf.add(message.data)) is not None:
                    line.post(Stored(stored))
            case Complete():
                self._shelf.finish(message)
                self._waits = line
                if self._served == self._shelf.digest:
                    self.begin()
                else:
                    self._restocked()
