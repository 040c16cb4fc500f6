"""`cloister serve` becomes this; FD is a memory file with the settings. Templates load the others' code meanwhile."""

import asyncio
from importlib import import_module
from typing import Any

from rich.console import Console

from cloister.messages.cli_controller import StartController
from cloister.process.code import COMPUTING, Code
from cloister.process.entry import run_server, unless_stopped

EDGE = (  # the processes that do not compute; none of them needs torch
    "cloister.gateway",
    "cloister.gateway.key_waiting",
    "cloister.sealed_api",
    "cloister.controller.unsealer",
    "cloister.controller.gpu_reporter",
    "cloister.link.network.server_bridge",
    "cloister.detection",
)


async def _serve(start: StartController, console: Console, stopped: asyncio.Task[Any]) -> None:
    code = Code(EDGE, COMPUTING)
    try:
        # In a thread, so that a signal to stop is handled meanwhile.
        startup = await unless_stopped(stopped, asyncio.to_thread(import_module, "cloister.controller.startup"))
        if startup is not None:
            await startup.serve(start, code, console, stopped)
    finally:
        await code.close()


if __name__ == "__main__":
    run_server("controller", _serve)
