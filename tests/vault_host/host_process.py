"""`cloister vault serve` as a user starts it, here or in a network namespace of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from cloister.link.network.address import Address
from tests.served import Command


class HostProcess(Command):
    """A running vault host."""

    def __init__(self, log: Path, key: Path, *arguments: str, listen: str = "127.0.0.1:0", namespace: str = "") -> None:
        elsewhere = ("ip", "netns", "exec", namespace) if namespace else ()
        super().__init__(log, "vault", "serve", "--listen", listen, "--key", str(key), *arguments, before=elsewhere)

    def address(self, patience_s: float = 240) -> str:
        return self.wait_for(r"listens on (\S+);", patience_s)

    def bridges(self) -> list[psutil.Process]:
        return [one for one in self.children() if named(one) == "cl-bridge-far"]


@contextmanager
def running_host(log: Path, key: Path, *arguments: str) -> Iterator[HostProcess]:
    vault_host = HostProcess(log, key, *arguments)
    try:
        yield vault_host
    finally:
        vault_host.stop()


def runs(process: psutil.Process, module: str) -> bool:
    """Whether it lives and is `python -m module`."""
    try:
        return module in process.cmdline()
    except psutil.Error:
        return False


def named(process: psutil.Process) -> str:
    """What `ps` calls it; empty once it has ended."""
    try:
        return process.name()
    except psutil.Error:
        return ""


class Wiretap:
    """Stands between a server and its vault host and keeps every byte that passes, or cuts the line."""

    def __init__(self, target: str) -> None:
        self._target = Address.parse(target)
        self._listener = Address("127.0.0.1", 0).listen()
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.heard = bytearray()
        self._lines: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                server, _ = self._listener.accept()
                host = self._target.connect(5)
                self._lines += [server, host]
                for source, sink in ((server, host), (host, server)):
                    threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self.heard += data
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for line in (self._listener, *self._lines):
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()


def why_no_namespaces() -> str:
    """Empty where a network namespace and a cable to it can be made."""
    if os.geteuid() != 0:
        return "only root may lay a cable between network namespaces"
    if shutil.which("ip") is None:
        return "`ip` is not on this machine (package iproute2)"
    one, other = f"cl{os.getpid()}t", f"cl{os.getpid()}u"  # others may try at the same time
    trial = subprocess.run(["ip", "link", "add", one, "type", "veth", "peer", "name", other], capture_output=True)
    subprocess.run(["ip", "link", "del", one], capture_output=True)
    return "" if trial.returncode == 0 else "this kernel makes no veth pair"


@contextmanager
def another_network() -> Iterator[tuple[str, str]]:
    """A network namespace at the other end of a cable: its name, and the address of something in it."""
    name = f"cl{os.getpid()}"
    here, there = f"{name}a", f"{name}b"
    net = f"10.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    ip("netns", "add", name)
    try:
        ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
        ip("addr", "add", f"{net}.1/24", "dev", here)
        ip("link", "set", here, "up")
        ip("-n", name, "addr", "add", f"{net}.2/24", "dev", there)
        ip("-n", name, "link", "set", there, "up")
        ip("-n", name, "link", "set", "lo", "up")
        yield name, f"{net}.2"
    finally:
        subprocess.run(["ip", "link", "del", here], capture_output=True)
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
