"""One control socket in the controller's loop. Every fault, a peer's silence too, ends it; its owner is called once."""

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from cloister.errors import CloisterError, ProtocolError, where_raised
from cloister.messages.frames import FrameReader, encode_frames
from cloister.messages.lifecycle import Ping, Pong
from cloister.process.watchdog import Finding, Patience, Watchdog

log = logging.getLogger(__name__)
RECEIVE_BYTES = 1 << 18
MAX_UNSENT_BYTES = 64 * 1024 * 1024
MAX_DESCRIPTORS = 16


class Endpoint:
    """`on_end` is called once, unless the owner closed it itself."""

    def __init__(
        self, peer: socket.socket, union: object, on_message: Callable[[Any], None], on_end: Callable[[], None]
    ) -> None:
        peer.setblocking(False)
        self._peer = peer
        self._frames: FrameReader[msgspec.Struct] = FrameReader(union)
        self._on_message, self._on_end = on_message, on_end
        self._unsent: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self._unsent_bytes = 0
        self._gathered: list[msgspec.Struct] = []
        self._received: deque[int] = deque()
        self._loop = asyncio.get_running_loop()
        self.open = True
        self.late = False  # the process at the other end was stopped or silent
        self._watchdog: Watchdog | None = None
        self._loop.add_reader(peer, self._receive)

    def send(self, message: msgspec.Struct, descriptors: tuple[int, ...] = ()) -> None:
        """Now or as soon as the peer reads. Descriptors are copied: the caller closes its own."""
        self._send_gathered()
        self._send((message,), descriptors)

    def send_soon(self, message: msgspec.Struct) -> None:
        """At the loop's next turn, with all else sent this way, in one frame if it fits: one wake-up."""
        self._gathered.append(message)
        if len(self._gathered) == 1:
            self._loop.call_soon(self._send_gathered)

    def _send_gathered(self) -> None:
        if self._gathered:
            messages, self._gathered = tuple(self._gathered), []
            self._send(messages)

    def _send(self, messages: tuple[msgspec.Struct, ...], descriptors: tuple[int, ...] = ()) -> None:
        if not self.open:
            return
        frame = memoryview(encode_frames(messages))
        self._unsent.append((frame, tuple(os.dup(one) for one in descriptors)))
        self._unsent_bytes += len(frame)
        if len(self._unsent) == 1:
            self._flush()
        if self._unsent_bytes > MAX_UNSENT_BYTES:
            self._loop.call_soon(self._end)

    def watch(self, name: str, stopped: Callable[[], bool]) -> None:
        self._watchdog = Watchdog(stopped, lambda: self.send(Ping()), lambda found: self._end_late(name, found))

    def demand_answers(self, patience: Patience | None) -> None:
        """From now on the process is also watched for silence. None: it answers no pings."""
        if self._watchdog is not None and patience is not None:
            self._watchdog.demand_answers(patience)

    def _end_late(self, name: str, found: Finding) -> None:
        log.warning("The %s %s; it is ended.", name, found)
        self.late = True
        self._end()

    def take_descriptor(self) -> int:
        if not self._received:
            raise ProtocolError("A message announces a descriptor that did not come.")
        return self._received.popleft()

    def say_goodbye(self) -> None:
        """Send nothing more: the peer reads an end and may end by itself. Its last messages are still received."""
        self._send_gathered()
        if self.open:
            with suppress(OSError):
                self._peer.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """`on_end` is not called."""
        if not self.open:
            return
        self._send_gathered()
        self.open = False
        if self._watchdog is not None:
            self._watchdog.close()
        self._loop.remove_reader(self._peer)
        self._loop.remove_writer(self._peer)
        self._peer.close()
        for _, descriptors in self._unsent:
            for one in descriptors:
                os.close(one)
        for one in self._received:
            os.close(one)
        self._unsent.clear()
        self._received.clear()

    def _end(self) -> None:
        if self.open:
            self.close()
            self._on_end()

    def _receive(self) -> None:
        try:
            data, descriptors, flags, _ = socket.recv_fds(self._peer, RECEIVE_BYTES, MAX_DESCRIPTORS)
        except BlockingIOError:
            return
        except OSError:
            return self._end()
        self._received.extend(descriptors)
        if not data or flags & socket.MSG_CTRUNC:
            return self._end()
        try:
            for message in self._frames.feed(data):
                if self._watchdog is not None:
                    self._watchdog.answered()
                if self.open and not isinstance(message, Pong):
                    self._on_message(message)
        except CloisterError:
            self._end()
        except Exception as wrong:  # our own fault: both sides may now disagree about their state
            log.error("A control socket failed: %s.", where_raised(wrong))
            self._end()

    def _flush(self) -> None:
        try:
            while self._unsent:
                frame, descriptors = self._unsent[0]
                sent = socket.send_fds(self._peer, [frame], descriptors) if descriptors else self._peer.send(frame)
                for one in descriptors:
                    os.close(one)
                self._unsent_bytes -= sent
                if sent == len(frame):
                    self._unsent.popleft()
                else:
                    self._unsent[0] = (frame[sent:], ())
        except BlockingIOError:
            self._loop.add_writer(self._peer, self._flush)
            return
        except OSError:
            self._loop.call_soon(self._end)
            return
        self._loop.remove_writer(self._peer)
