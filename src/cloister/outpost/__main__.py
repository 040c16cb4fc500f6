"""Entry of the outpost: `cloister vault serve` becomes `python -m cloister.outpost FD`, in the same process.

FD is a memory file with the settings. Nothing printed here comes from a prompt.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console

from cloister.config import OutpostSettings
from cloister.messages.lifecycle import StartController
from cloister.models.source import ModelFolder
from cloister.outpost.process import Outpost
from cloister.process.entry import run_server, unless_stopped


async def _serve(start: StartController, console: Console, stopped: asyncio.Task[Any]) -> None:
    outpost = Outpost(
        ModelFolder(start.name, Path(start.path), {}), OutpostSettings.model_validate_json(start.settings)
    )
    try:
        with console.status(f"Loading {start.name}…"):
            address = await unless_stopped(stopped, outpost.start())
        if address is not None:
            seconds = monotonic() - start.begun
            console.print(
                f"[bold green]Outpost[/] with vaults for [bold]{start.name}[/] listens on {address}; "
                f"ready in {seconds:.1f} s",
                soft_wrap=True,
            )
            await stopped
    finally:
        await outpost.close()


if __name__ == "__main__":
    run_server("outpost", _serve)
