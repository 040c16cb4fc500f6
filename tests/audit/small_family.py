"""A process that calls itself a controller, and its child a vault: what an audit of a machine looks at. Words that come
in are kept by the child if it is to keep them; other arguments are its flaws."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import socket
import sys
from typing import Any

libc = ctypes.CDLL(None)
kept: list[Any] = []
PR_SET_NAME, CLONE_NEWNET = 15, 0x40000000


def name(words: bytes) -> None:
    libc.prctl(PR_SET_NAME, words, 0, 0, 0)


def main(flaws: list[str]) -> None:
    come, go = os.pipe()
    name(b"cl-controller")
    if "dumps" not in flaws:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    child = os.fork()
    if child == 0:
        os.close(go)  # or it would never see the end of what comes in
        name(b"cl-vault")
        if "network" not in flaws:
            libc.unshare(CLONE_NEWNET)
        if "writes" in flaws:
            os.open(os.environ["TO_WRITE"], os.O_WRONLY | os.O_CREAT)
        if "code" in flaws:
            kept.append(mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC))
        if "listens" in flaws:
            kept.append(socket.create_server(("127.0.0.1", 0)))
        if "answers packets" in flaws:
            kept.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            kept[-1].bind(("127.0.0.1", 0))
        if "listens locally" in flaws:
            kept.append(socket.socket(socket.AF_UNIX))
            kept[-1].bind(f"\0cloister-audit-{os.getpid()}")
            kept[-1].listen()
        if "catches" in flaws:
            signal.signal(signal.SIGUSR1, lambda *_: None)
        os.write(1, b"up\n")
        buffer = bytearray(4096)
        while count := os.readv(come, [buffer]):
            if "removes" in flaws:
                kept.append(os.open(os.environ["TO_WRITE"], os.O_WRONLY | os.O_CREAT, 0o600))
                os.unlink(os.environ["TO_WRITE"])
                os.writev(kept[-1], [memoryview(buffer)[:count]])
            if "does not receive" in flaws:
                kept.append(socket.socketpair())
                kept[-1][0].send(memoryview(buffer)[:count])
            if "leaves in a pipe" in flaws:
                kept.append(os.pipe())
                os.writev(kept[-1][1], [memoryview(buffer)[:count]])
            if "keeps" in flaws:
                kept.append(bytes(buffer[:count]))
            if "logs" in flaws:
                with open(os.environ["TO_WRITE"], "wb") as file:
                    file.write(buffer[:count])
            ctypes.memset((ctypes.c_char * len(buffer)).from_buffer(buffer), 0, len(buffer))
            os.write(1, b"taken\n")
        os._exit(0)
    os.close(come)
    buffer = bytearray(4096)
    while count := os.readv(0, [buffer]):
        os.writev(go, [memoryview(buffer)[:count]])
        ctypes.memset((ctypes.c_char * len(buffer)).from_buffer(buffer), 0, len(buffer))
    os.kill(child, 9)


if __name__ == "__main__":
    main(sys.argv[1:])
