"""`cloister vault serve` becomes this; FD: a memory file with the settings. Nothing printed is a prompt's."""

import asyncio
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console

from cloister.config import VaultHostSettings
from cloister.controller.gpu_evidence import REPORTER
from cloister.messages.cli_controller import StartController
from cloister.models.source import ModelFolder
from cloister.process.code import COMPUTING, Code
from cloister.process.entry import run_server, unless_stopped
from cloister.vault_host.host import DOORKEEPER, VaultHost


async def _serve(start: StartController, console: Console, stopped: asyncio.Task[Any]) -> None:
    code = Code((DOORKEEPER, REPORTER), COMPUTING)
    host = VaultHost(
        ModelFolder(start.name, Path(start.path), {}), VaultHostSettings.model_validate_json(start.settings)
    )
    try:
        with console.status(f"Loading {start.name}…"):
            address = await unless_stopped(stopped, host.start())
        if address is not None:
            seconds = monotonic() - start.begun
            console.print(
                f"[bold green]Vault host[/] with vaults for [bold]{start.name}[/] listens on {address}; "
                f"ready in {seconds:.1f} s",
                soft_wrap=True,
            )
            await unless_stopped(stopped, code.lost())
    finally:
        await host.close()
        await code.close()


if __name__ == "__main__":
    run_server("vault-host", _serve)
