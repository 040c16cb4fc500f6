"""A control socket without an event loop. A malformed frame or unannounced descriptor is a ProtocolError, its end."""

import array
import os
import select
import socket
from collections import deque
from typing import Generic, TypeVar

import msgspec

from cloister.errors import ProtocolError
from cloister.messages.frames import FrameReader, encode_frame

RECEIVE_BYTES = 1 << 20
MAX_DESCRIPTORS = 64
_DESCRIPTOR_BYTES = array.array("i").itemsize
_BESIDE_BYTES = socket.CMSG_SPACE(MAX_DESCRIPTORS * _DESCRIPTOR_BYTES)
Message = TypeVar("Message", bound=msgspec.Struct)


class BlockingEndpoint(Generic[Message]):
    def __init__(self, peer: socket.socket, union: object) -> None:
        self._peer = peer
        self._frames: FrameReader[Message] = FrameReader(union)
        self._messages: deque[Message] = deque()
        self._descriptors: deque[int] = deque()

    def next(self) -> Message | None:
        message = self.next_or_readable(set())
        assert not isinstance(message, set)
        return message

    def next_or_readable(self, watched: set[int]) -> Message | set[int] | None:
        while not self._messages:
            if readable := _readable({self._peer.fileno(), *watched}) & watched:
                return readable
            if (received := self.receive()) is None:
                return None
            self._messages.extend(received)
        return self._messages.popleft()

    def receive(self, *, wait: bool = True) -> list[Message] | None:
        """With `wait` at least one; None once the other side has hung up."""
        flags = socket.MSG_CMSG_CLOEXEC | (0 if wait else socket.MSG_DONTWAIT)
        try:
            # Not socket.recv_fds: Python 3.11's does not pass the flags on.
            data, beside, received, _ = self._peer.recvmsg(RECEIVE_BYTES, _BESIDE_BYTES, flags)
        except BlockingIOError:
            return []
        for level, kind, content in beside:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                whole = len(content) - len(content) % _DESCRIPTOR_BYTES
                self._descriptors.extend(array.array("i", content[:whole]))
        if received & socket.MSG_CTRUNC or len(self._descriptors) > MAX_DESCRIPTORS:
            raise ProtocolError("More descriptors came than were announced.")
        return self._frames.feed(data) if data else None

    def take_descriptors(self, count: int) -> list[int]:
        if len(self._descriptors) < count:
            raise ProtocolError("A message announces descriptors that did not come.")
        return [self._descriptors.popleft() for _ in range(count)]

    def send(self, message: msgspec.Struct, *descriptors: int) -> None:
        frame = encode_frame((message,))
        sent = socket.send_fds(self._peer, [frame], list(descriptors)) if descriptors else 0
        self._peer.sendall(frame[sent:])

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.popleft())


def _readable(descriptors: set[int]) -> set[int]:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll()}
