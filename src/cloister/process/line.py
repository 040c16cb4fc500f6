"""A child's end of the socket to the process that started it: orders with descriptors beside them, blocking."""

from __future__ import annotations

import os
import socket
from collections import deque
from typing import Generic, TypeVar

import msgspec

from cloister.errors import ProtocolError
from cloister.messages.frames import FrameReader, encode_frame

RECEIVE_BYTES = 1 << 16
MAX_DESCRIPTORS = 16

Message = TypeVar("Message", bound=msgspec.Struct)


class Line(Generic[Message]):
    """Takes orders, sends replies."""

    def __init__(self, peer: socket.socket, union: object) -> None:
        self._peer = peer
        self._frames: FrameReader[Message] = FrameReader(union)
        self._messages: deque[Message] = deque()
        self._descriptors: deque[int] = deque()

    def fileno(self) -> int:
        return self._peer.fileno()

    def next(self) -> Message | None:
        """The next order; None when the other side hung up."""
        while not self._messages:
            if not self._receive():
                return None
        return self._messages.popleft()

    def _receive(self) -> bool:
        """Take what has come; whether anything may still come."""
        data, descriptors, flags, _ = socket.recv_fds(self._peer, RECEIVE_BYTES, MAX_DESCRIPTORS)
        self._descriptors.extend(descriptors)
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        if data and flags & socket.MSG_CTRUNC:
            raise ProtocolError("More descriptors came than fit.")
        self._messages.extend(self._frames.feed(data))
        return bool(data)

    def take_descriptors(self, count: int) -> list[int]:
        """The descriptors that the order at hand announces; they are the caller's to close."""
        if len(self._descriptors) < count:
            raise ProtocolError("An order announces descriptors that did not come.")
        return [self._descriptors.popleft() for _ in range(count)]

    def send(self, message: msgspec.Struct, *descriptors: int) -> None:
        """Send a message; descriptors go as copies."""
        frame = encode_frame((message,))
        sent = socket.send_fds(self._peer, [frame], list(descriptors)) if descriptors else 0
        self._peer.sendall(frame[sent:])
