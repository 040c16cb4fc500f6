"""How a command becomes a long-lived server of its own, and how that process begins and ends.

    `cloister serve` → become → python -m cloister.controller FD → run_server

FD is a memory file with the settings; arguments could be read by anyone on the machine. The new process starts with
nothing but its own code in memory, and with an allocator that wipes what it frees.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec
from pydantic import BaseModel
from rich.console import Console

from cloister.errors import CloisterError, SetupError
from cloister.messages.lifecycle import StartController
from cloister.process.hardening import WIPE_FREED_MEMORY, forbid_core_dumps, hide_tracebacks, name_process

T = TypeVar("T")
Serve = Callable[[StartController, Console, asyncio.Task[Any]], Coroutine[Any, Any, None]]


def become(module: str, settings: BaseModel, name: str, path: Path, begun: float) -> NoReturn:
    """Replace this program by `python -m module FD`; `name` and `path` are the model's."""
    start = StartController(settings.model_dump_json(), name, str(path.absolute()), begun)
    note = os.memfd_create("cloister-settings", 0)
    os.write(note, msgspec.json.encode(start))
    os.lseek(note, 0, os.SEEK_SET)
    os.execve(sys.executable, [sys.executable, "-m", module, str(note)], {**os.environ, **WIPE_FREED_MEMORY})


def run_server(role: str, serve: Serve) -> NoReturn:
    """Serve what the memory file says until told to stop, then end with a status; errors are told in their own words.

    `serve` gets a task that is done when somebody sends SIGINT or SIGTERM.
    """
    name_process(role)
    hide_tracebacks()
    forbid_core_dumps()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a vault takes six descriptors
    console = Console(stderr=True, highlight=False)
    with open(int(sys.argv[1]), "rb") as file:
        start = msgspec.json.decode(file.read(), type=StartController)
    status = 0
    try:
        # asyncio's own loop: uvloop keeps what it last received in a buffer that lives as long as the loop.
        asyncio.run(_serve(serve, start, console))
    except CloisterError as reason:
        console.print(f"[red]Error: {reason.message}[/]", soft_wrap=True)
        if reason.hint:
            console.print(reason.hint, markup=False, soft_wrap=True)
        status = 2 if isinstance(reason, SetupError) else 1
    sys.stderr.flush()
    os._exit(status)  # does not wait for threads that wait for dead children


async def _serve(serve: Serve, start: StartController, console: Console) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    stopped = asyncio.create_task(stop.wait())
    try:
        await serve(start, console, stopped)
    finally:
        stopped.cancel()
    console.print("Stopped.")


async def unless_stopped(stopped: asyncio.Task[Any], work: Coroutine[Any, Any, T]) -> T | None:
    """What the work results in; None if we are told to stop before, and the work is given up."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
