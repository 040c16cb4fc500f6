"""`cloister serve` → become → python -m cloister.controller FD → run_server. FD: a memory file, as arguments are
readable by all. The allocator wipes freed memory. Signals wait until they can be handled."""

import asyncio
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import msgspec
from rich.console import Console

from cloister.errors import CloisterError, SetupError
from cloister.messages.cli_controller import StartController
from cloister.messages.log_line import LogFormat
from cloister.process import interpreter
from cloister.process.child import send_output_to
from cloister.process.child_lines import ChildLines
from cloister.process.hardening import (
    ENDING,
    WIPE_FREED_MEMORY,
    check_freed_memory,
    forbid_core_dumps,
    hide_tracebacks,
    name_process,
)
from cloister.process.log_lines import FOR_PARENT, begin_logging, writer_of

if TYPE_CHECKING:
    from pydantic import BaseModel

log = logging.getLogger("cloister")
T = TypeVar("T")
Serve = Callable[[StartController, Console, asyncio.Task[Any]], Coroutine[Any, Any, None]]
STOP_S = 2.0  # to end in order; then it ends at once, and the kernel ends its children with it
STOPPED_TWICE = 130


def become(
    module: str,
    settings: "BaseModel",
    name: str,
    path: Path,
    begun: float,
    reserved: int | None = None,
    release: bytes | None = None,
    log_format: LogFormat = "text",
) -> NoReturn:
    """`name` and `path`: the model's; `reserved` keeps the port. With a `release`, no other code runs from here on."""
    start = StartController(settings.model_dump_json(), name, str(path.absolute()), begun, reserved, log_format)
    note = os.memfd_create("cloister-settings", 0)
    os.write(note, msgspec.json.encode(start))
    os.lseek(note, 0, os.SEEK_SET)
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    if release is None:
        command, passed = interpreter.python(module, str(note)), dict(os.environ)
    else:
        command = interpreter.python_of(release, module, str(note))
        passed = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "LD_"))}
    os.execve(sys.executable, command, {**passed, **WIPE_FREED_MEMORY})


def run_server(role: str, serve: Serve) -> NoReturn:
    """`serve` gets a task that is done when a signal of ENDING came. A second signal ends the process at once."""
    name_process(role)
    hide_tracebacks()
    forbid_core_dumps()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a vault takes six descriptors
    with open(int(sys.argv[1]), "rb") as file:
        start = msgspec.json.decode(file.read(), type=StartController)
    as_json = start.log_format == "json"
    console = Console(stderr=True, highlight=False, quiet=as_json)  # what is for people is no log line
    os.environ.pop(FOR_PARENT, None)
    begin_logging(role, start.log_format)
    status = 0
    try:
        check_freed_memory()
        # asyncio's own loop: uvloop keeps what it last received in a buffer that lives as long as the loop.
        asyncio.run(_serve(serve, start, console))
    except CloisterError as reason:
        if as_json:
            log.critical("Ended by an error. %s", reason)
        console.print(f"Error: {reason.message}", style="red", markup=False, soft_wrap=True)
        if reason.hint:
            console.print(reason.hint, markup=False, soft_wrap=True)
        status = 2 if isinstance(reason, SetupError) else 1
    _end(status)


async def _serve(serve: Serve, start: StartController, console: Console) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def asked() -> None:
        for number in ENDING:
            loop.remove_signal_handler(number)
            signal.signal(number, lambda *_: _end(STOPPED_TWICE))
        # A thread: the loop may be waiting for a process that does not end.
        timer = threading.Timer(STOP_S, lambda: _stopped(console))
        timer.daemon = True
        timer.start()
        logging.disable(logging.WARNING)  # that a process ended is no news from here on
        stop.set()

    for number in ENDING:
        loop.add_signal_handler(number, asked)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    lines = ChildLines(writer_of(start.log_format))
    send_output_to(lines.writer)
    lines.watch()
    stopped = asyncio.create_task(stop.wait())
    try:
        await serve(start, console, stopped)
    finally:
        stopped.cancel()
        lines.read()
    _stopped(console)


def _stopped(console: Console) -> NoReturn:
    console.print("Stopped.")
    _end(0)


def _end(status: int) -> NoReturn:
    sys.stderr.flush()
    os._exit(status)  # does not wait for threads that wait for dead children


async def unless_stopped(
    stopped: asyncio.Task[Any],
    work: Coroutine[Any, Any, T],
    release: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> T | None:
    """None if asked to stop before, which cancels the work; `release` then ends what it may wait for."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        ending = [] if task.done() or release is None else [asyncio.create_task(release())]
        task.cancel()
        await asyncio.gather(task, *ending, return_exceptions=True)
