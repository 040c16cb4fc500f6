"""What the controller says to the service: messages in order, and the descriptors that some of them announce."""

from __future__ import annotations

import array
import os
import socket
from collections import deque

from cloister.errors import ProtocolError
from cloister.messages.frames import FrameReader
from cloister.messages.generation import AskStats, Cancel, Submit
from cloister.messages.service import AskView, AttachLink, DetachLink, Pause, Resume, ToSealedService

RECEIVE_BYTES = 1 << 20
MAX_DESCRIPTORS = 64
_DESCRIPTOR_BYTES = array.array("i").itemsize
_BESIDE_BYTES = socket.CMSG_SPACE(MAX_DESCRIPTORS * _DESCRIPTOR_BYTES)

ToService = Submit | Cancel | AskStats | AttachLink | DetachLink | Pause | Resume | AskView


class Inbox:
    """The receiving half of the control socket."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._frames: FrameReader[ToService] = FrameReader(ToSealedService)
        self._descriptors: deque[int] = deque()

    def receive(self, *, wait: bool) -> list[ToService] | None:
        """The messages that have come, after waiting for some if told to; None once the controller has hung up."""
        flags = socket.MSG_CMSG_CLOEXEC | (0 if wait else socket.MSG_DONTWAIT)
        try:
            # Not socket.recv_fds: Python 3.11's does not pass the flags on.
            data, beside, received, _ = self._control.recvmsg(RECEIVE_BYTES, _BESIDE_BYTES, flags)
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
        """The descriptors that the message at hand announces; they are the caller's to close."""
        if len(self._descriptors) < count:
            raise ProtocolError("A message announces descriptors that did not come.")
        return [self._descriptors.popleft() for _ in range(count)]

    def close(self) -> None:
        """Close what nobody took."""
        while self._descriptors:
            os.close(self._descriptors.popleft())
