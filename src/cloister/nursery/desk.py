"""The nursery's end of its control socket: messages with descriptors beside them, one after the other, blocking."""

from __future__ import annotations

import os
import select
import socket
from collections import deque

import msgspec

from cloister.errors import ProtocolError
from cloister.messages.frames import FrameReader, encode_frame
from cloister.messages.nursery import Preload, Spawn, ToNursery

RECEIVE_BYTES = 1 << 18
MAX_DESCRIPTORS = 16


class Desk:
    """Takes the controller's orders."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._frames: FrameReader[Preload | Spawn] = FrameReader(ToNursery)
        self._messages: deque[Preload | Spawn] = deque()
        self._descriptors: deque[int] = deque()

    def next(self, watched: set[int]) -> Preload | Spawn | set[int] | None:
        """The next order, or those of the watched descriptors that become readable before it; None at the end."""
        while not self._messages:
            ready = _readable({self._control.fileno(), *watched})
            if ended := ready & watched:
                return ended
            data, descriptors, flags, _ = socket.recv_fds(self._control, RECEIVE_BYTES, MAX_DESCRIPTORS)
            self._descriptors.extend(descriptors)
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
            if not data:
                return None
            if flags & socket.MSG_CTRUNC:
                raise ProtocolError("More descriptors came than fit.")
            self._messages.extend(self._frames.feed(data))
        return self._messages.popleft()

    def take_descriptors(self, count: int) -> list[int]:
        """The descriptors that the order at hand announces; they are the caller's to close."""
        if len(self._descriptors) < count:
            raise ProtocolError("An order announces descriptors that did not come.")
        return [self._descriptors.popleft() for _ in range(count)]

    def send(self, message: msgspec.Struct, *descriptors: int) -> None:
        """Send a message; descriptors go as copies."""
        frame = encode_frame((message,))
        sent = socket.send_fds(self._control, [frame], list(descriptors)) if descriptors else 0
        self._control.sendall(frame[sent:])


def _readable(descriptors: set[int]) -> set[int]:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll()}
