"""One control socket of a process, as its controller has it, without an event loop."""

from __future__ import annotations

import socket
from collections import deque
from typing import Any

import msgspec

from cloister.messages.frames import FrameReader, encode_frame

PATIENCE_S = 240


class Line:
    """One control socket."""

    def __init__(self, peer: socket.socket, union: object) -> None:
        peer.settimeout(PATIENCE_S)
        self.socket = peer
        self._frames: FrameReader[msgspec.Struct] = FrameReader(union)
        self._messages: deque[Any] = deque()
        self.descriptors: deque[int] = deque()

    def send(self, *messages: msgspec.Struct, descriptors: tuple[int, ...] = ()) -> None:
        socket.send_fds(self.socket, [encode_frame(messages)], list(descriptors))

    def handle(self) -> Any:
        """The next message; None when the other side hung up."""
        while not self._messages:
            try:
                data, descriptors, _, _ = socket.recv_fds(self.socket, 1 << 16, 16)
            except ConnectionResetError:
                return None
            self.descriptors.extend(descriptors)
            if not data:
                return None
            self._messages.extend(self._frames.feed(data))
        return self._messages.popleft()
