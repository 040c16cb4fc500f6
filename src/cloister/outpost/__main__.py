"""Entry of the outpost: `cloister vault serve` becomes `python -m cloister.outpost FD`, in the same process.

FD is a memory file with the settings. Nothing printed here comes from a prompt.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from pathlib import Path
from time import monotonic

import msgspec
from rich.console import Console

from cloister.config import OutpostSettings
from cloister.errors import CloisterError, SetupError
from cloister.hardening import forbid_core_dumps, hide_tracebacks
from cloister.messages.lifecycle import StartController
from cloister.models.source import ModelFolder
from cloister.outpost.process import Outpost


def main() -> int:
    """Serve until SIGINT or SIGTERM; the exit status."""
    hide_tracebacks()
    forbid_core_dumps()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    console = Console(stderr=True, highlight=False)
    with open(int(sys.argv[1]), "rb") as file:
        start = msgspec.json.decode(file.read(), type=StartController)
    try:
        asyncio.run(_serve(start, console))
    except CloisterError as reason:
        console.print(f"[red]Error: {reason.message}[/]", soft_wrap=True)
        if reason.hint:
            console.print(reason.hint, markup=False, soft_wrap=True)
        return 2 if isinstance(reason, SetupError) else 1
    return 0


async def _serve(start: StartController, console: Console) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    outpost = Outpost(
        ModelFolder(start.name, Path(start.path), {}), OutpostSettings.model_validate_json(start.settings)
    )
    starting = asyncio.create_task(outpost.start())
    stopped = asyncio.create_task(stop.wait())
    try:
        with console.status(f"Loading {start.name}…"):
            await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            seconds = monotonic() - start.begun
            console.print(
                f"[bold green]Outpost[/] with vaults for [bold]{start.name}[/] listens on {starting.result()}; "
                f"ready in {seconds:.1f} s",
                soft_wrap=True,
            )
            await stopped
    finally:
        starting.cancel()
        stopped.cancel()
        await asyncio.gather(starting, stopped, return_exceptions=True)
        await outpost.close()
    console.print("Stopped.")


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)
