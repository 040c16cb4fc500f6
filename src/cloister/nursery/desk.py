"""The nursery's end of its control socket: orders, and the children that end while it waits for one."""

from __future__ import annotations

import select
import socket

from cloister.messages.nursery import Preload, Spawn, ToNursery
from cloister.process.line import Line


class Desk(Line[Preload | Spawn]):
    """Takes the controller's orders."""

    def __init__(self, control: socket.socket) -> None:
        super().__init__(control, ToNursery)

    def next_or_ended(self, watched: set[int]) -> Preload | Spawn | set[int] | None:
        """The next order, or those of the watched descriptors that become readable before it; None at the end."""
        while not self._messages:
            if ended := _readable({self.fileno(), *watched}) & watched:
                return ended
            if not self._receive():
                return None
        return self._messages.popleft()


def _readable(descriptors: set[int]) -> set[int]:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll()}
