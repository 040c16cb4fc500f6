"""A provider that has a model folder deals it to the parties, with a bar that says how far it is."""

from __future__ import annotations

import asyncio

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from cloister.errors import PartyLost
from cloister.models.source import ModelFolder
from cloister.mpc.certificates import Credentials
from cloister.mpc.config import PartiesConfig
from cloister.mpc.parties import Parties
from cloister.mpc.provision import deal_weights, tag_key

PATIENCE_S = 60.0


async def serve_weights(config: PartiesConfig, own: Credentials, folder: ModelFolder, console: Console) -> None:
    """Until all parties serve the model."""
    from cloister.mpc.calibration import prepare

    with console.status("Folding the model's weights…"):
        shape, weights = await asyncio.to_thread(prepare, folder)
    matrices = list(weights.named())
    with console.status("Waiting for the parties…"):
        parties = await connect_patiently(config, own, PATIENCE_S)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    try:
        with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
            dealing = progress.add_task("Dealing weights", total=len(matrices) + 1)
            await deal_weights(
                parties,
                folder.name,
                msgspec.json.encode(shape),
                matrices,
                tag_key(own.key),
                lambda _name, _dealt: progress.advance(dealing),
            )
            progress.advance(dealing)
    finally:
        await parties.close()


async def connect_patiently(config: PartiesConfig, own: Credentials, patience_s: float) -> Parties:
    """Parties that are just starting are waited for."""
    end = asyncio.get_running_loop().time() + patience_s
    while True:
        try:
            return await Parties.connect(config, own)
        except PartyLost:
            if asyncio.get_running_loop().time() > end:
                raise
            await asyncio.sleep(0.25)
