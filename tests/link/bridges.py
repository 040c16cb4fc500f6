"""A server and a vault bridge as real processes, connected over loopback; the test plays everybody else."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Self

from msgspec.structs import replace

from cloister.link.memory import LinkMemory, LinkShape
from cloister.link.network.address import Address, address_of, without_delay
from cloister.link.network.credentials import certificate_hash, credentials_from
from cloister.link.network.handshake import request_for
from cloister.messages.frames import FrameReader, encode_frame
from cloister.messages.lifecycle import StartFailed
from cloister.messages.network_link import (
    Accept,
    Admitted,
    AskVaultHost,
    Connect,
    FromVaultBridge,
    UseVault,
    VaultHostShown,
)
from cloister.process.hardening import WIPE_FREED_MEMORY

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

    def handle(self) -> Any:
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
        command = [sys.executable, "-m", module, str(theirs.fileno())]
        process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, env={**os.environ, **WIPE_FREED_MEMORY}
        )
    return process, ours


class _Pair:
    """Two bridges, and our ends of the sockets to them."""

    server_bridge: subprocess.Popen[bytes]
    vault_bridge: subprocess.Popen[bytes]
    controller: End
    host: End

    def ended(self) -> tuple[str, str]:
        """Wait until both processes are gone; what each said."""
        said = []
        for process in (self.server_bridge, self.vault_bridge):
            process.wait(PATIENCE_S)
            assert process.stderr is not None
            said.append(process.stderr.read().decode())
        return said[0], said[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self.server_bridge, self.vault_bridge):
            process.kill()
            process.wait()
            assert process.stderr is not None
            process.stderr.close()
        self.controller.socket.close()
        self.host.socket.close()


class Asked(_Pair):
    """A server bridge that asks for evidence only."""

    def __init__(self, nonce: bytes) -> None:
        listener = Address("127.0.0.1", 0).listen()
        there = credentials_from(SECRET, "vault_host")
        self.certificate = certificate_hash(there)
        self.server_bridge, controller = start("cloister.link.network.server_bridge")
        self.vault_bridge, host = start("tests.link.lone_vault_bridge")
        self.controller, self.host = End(controller, VaultHostShown | StartFailed), End(host, FromVaultBridge)
        self.controller.send(AskVaultHost(str(address_of(listener)), credentials_from(SECRET, "server"), nonce))
        with listener:
            connection, _ = listener.accept()
        with connection:
            accept = Accept(there, request_for(MODEL, LinkShape(heads=2, dim=16, layers=3, capacity=4)))
            self.host.send(accept, descriptors=(connection.fileno(),))


class Bridges(_Pair):
    """`link` is the one whose questions come out at `vault_link`. `between` may put something of its own in between."""

    def __init__(
        self,
        shape: LinkShape,
        *,
        server_model: bytes = MODEL,
        server_secret: bytes = SECRET,
        pinned: bytes = b"",
        between: Callable[[Address], Address] | None = None,
    ) -> None:
        self.link, self.vault_link = LinkMemory(shape), LinkMemory(shape)
        listener = Address("127.0.0.1", 0).listen()
        address = address_of(listener)
        if between is not None:
            address = between(address)
        self.server_bridge, controller = start("cloister.link.network.server_bridge")
        self.vault_bridge, host = start("tests.link.lone_vault_bridge")
        self.controller = End(controller, object)
        self.host = End(host, FromVaultBridge)
        there = credentials_from(SECRET, "vault_host")
        here = replace(credentials_from(server_secret, "server"), pinned=pinned or certificate_hash(there))
        order = Connect(str(address), here, request_for(server_model, shape))
        self.controller.send(order, descriptors=self.link.vault_descriptors)
        with listener:
            connection, _ = listener.accept()
        with without_delay(connection):
            accept = Accept(there, request_for(MODEL, shape))
            self.host.send(accept, descriptors=(connection.fileno(),))

    def lend(self) -> socket.socket:
        """What a vault host does once the vault bridge vouches for the peer; our end of the vault's control socket."""
        assert isinstance(self.host.handle(), Admitted)
        ours, theirs = socket.socketpair()
        with theirs:
            self.host.send(UseVault(), descriptors=(*self.vault_link.service_descriptors, theirs.fileno()))
        ours.settimeout(PATIENCE_S)
        return ours

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for link in (self.link, self.vault_link):
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
