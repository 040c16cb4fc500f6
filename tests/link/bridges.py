"""A near and a far bridge as real processes, connected over loopback; the test plays controller, outpost and vault."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from cloister.link.memory import LinkMemory, create_link
from cloister.link.network.address import Address, address_of, without_delay
from cloister.link.shape import LinkShape
from cloister.messages.bridge import Admitted, Cross, FromFar, Hail, Lend, Receive
from cloister.messages.frames import FrameReader, encode_frame
from cloister.messages.generation import VERSION

SECRET = bytes(range(32))
MODEL = bytes(32)
PATIENCE_S = 120


class End:
    """Our end of a control socket."""

    def __init__(self, peer: socket.socket, union: object) -> None:
        peer.settimeout(PATIENCE_S)
        self.socket = peer
        self._frames: FrameReader[Any] = FrameReader(union)
        self._heard: list[Any] = []

    def send(self, *messages: Any, descriptors: tuple[int, ...] = ()) -> None:
        frame = encode_frame(messages)
        sent = socket.send_fds(self.socket, [frame], list(descriptors)) if descriptors else 0
        self.socket.sendall(frame[sent:])

    def hear(self) -> Any:
        """The next message; None when the other side is gone."""
        while not self._heard:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._heard += self._frames.feed(data)
        return self._heard.pop(0)


def start(module: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", f"cloister.link.network.{module}", str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE)
    return process, ours


def hail_of(shape: LinkShape, model: bytes = MODEL) -> Hail:
    return Hail(VERSION, model, shape.heads, shape.dim, shape.layers, shape.capacity)


class Bridges:
    """`link` is the one whose questions come out at `far_link`. `connect` may put something of its own in between."""

    def __init__(
        self,
        shape: LinkShape,
        *,
        near_model: bytes = MODEL,
        near_secret: bytes = SECRET,
        between: Callable[[Address], Address] | None = None,
    ) -> None:
        self.link, self.far_link = create_link(shape), create_link(shape)
        listener = Address("127.0.0.1", 0).listen()
        address = address_of(listener)
        if between is not None:
            address = between(address)
        self.near, controller = start("near")
        self.far, outpost = start("far")
        self.controller = End(controller, object)
        self.outpost = End(outpost, FromFar)
        order = Cross(str(address), near_secret, hail_of(shape, near_model))
        self.controller.send(order, descriptors=self.link.vault_descriptors)
        with listener:
            connection, _ = listener.accept()
        with without_delay(connection):
            self.outpost.send(Receive(SECRET, hail_of(shape)), descriptors=(connection.fileno(),))

    def lend(self) -> socket.socket:
        """What an outpost does once the far bridge vouches for the peer; our end of the vault's control socket."""
        assert isinstance(self.outpost.hear(), Admitted)
        ours, theirs = socket.socketpair()
        with theirs:
            self.outpost.send(Lend(), descriptors=(*self.far_link.service_descriptors, theirs.fileno()))
        ours.settimeout(PATIENCE_S)
        return ours

    def ended(self) -> tuple[str, str]:
        """Wait until both processes are gone; what each said."""
        said = []
        for process in (self.near, self.far):
            process.wait(PATIENCE_S)
            assert process.stderr is not None
            said.append(process.stderr.read().decode())
        return said[0], said[1]

    def __enter__(self) -> Bridges:
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self.near, self.far):
            process.kill()
            process.wait()
            assert process.stderr is not None
            process.stderr.close()
        self.controller.socket.close()
        self.outpost.socket.close()
        for link in (self.link, self.far_link):
            link.close()


def close_when_gone(process: subprocess.Popen[bytes], link: LinkMemory) -> None:
    """As the controller does: the link of a vault that ended is closed."""
    process.wait()
    link.close_down()


def memory_of(pid: int) -> bytes:
    """All that a process can write to, as root or its parent may read it."""
    found = bytearray()
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            span, rights = line.split()[:2]
            if rights.startswith("rw"):
                begin, end = (int(one, 16) for one in span.split("-"))
                try:
                    memory.seek(begin)
                    found += memory.read(end - begin)
                except (OSError, ValueError, OverflowError):
                    continue
    return bytes(found)


def wait_until(holds: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def may_read_memory() -> bool:
    return os.geteuid() == 0
