"""Starts a bridge process and sees it off when it ends."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess

from cloister.process.child import Child, run_module
from cloister.process.hardening import WIPE_FREED_MEMORY


def start_bridge(module: str) -> tuple[Child, socket.socket]:
    """The process, and our end of its socket."""
    ours, theirs = socket.socketpair()
    process = run_module(module, theirs, **WIPE_FREED_MEMORY)
    pidfd = os.pidfd_open(process.pid)
    child = Child()
    child.born(os.dup(pidfd))
    loop = asyncio.get_running_loop()
    loop.add_reader(pidfd, _bury, loop, process, pidfd)
    return child, ours


def _bury(loop: asyncio.AbstractEventLoop, process: subprocess.Popen[bytes], pidfd: int) -> None:
    loop.remove_reader(pidfd)
    os.close(pidfd)
    process.wait()
