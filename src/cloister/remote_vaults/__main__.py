"""Entry of the vault host: `cloister vault serve` becomes `python -m cloister.remote_vaults FD`, in the same process.

FD is a memory file with the settings. Nothing printed here comes from a prompt.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from time import monotonic

from rich.console import Console

from cloister.config import OutpostSettings
from cloister.messages.lifecycle import StartController
from cloister.models.source import ModelFolder
from cloister.process.entry import run
from cloister.remote_vaults.host import VaultHost


async def _serve(start: StartController, console: Console) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    host = VaultHost(ModelFolder(start.name, Path(start.path), {}), OutpostSettings.model_validate_json(start.settings))
    starting = asyncio.create_task(host.start())
    stopped = asyncio.create_task(stop.wait())
    try:
        with console.status(f"Loading {start.name}…"):
            await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            seconds = monotonic() - start.begun
            console.print(
                f"[bold green]Vault host[/] with vaults for [bold]{start.name}[/] listens on {starting.result()}; "
                f"ready in {seconds:.1f} s",
                soft_wrap=True,
            )
            await stopped
    finally:
        starting.cancel()
        stopped.cancel()
        await asyncio.gather(starting, stopped, return_exceptions=True)
        await host.close()
    console.print("Stopped.")


if __name__ == "__main__":
    run(_serve)
