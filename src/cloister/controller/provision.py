"""Where the model comes from: a folder of this machine, or a provider's sealed file as soon as its key was released."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rich.console import Console

from cloister.config import GatewaySettings, Settings
from cloister.controller.delivery import Delivery
from cloister.controller.unsealing import Unsealing
from cloister.messages.lifecycle import StartController
from cloister.models.source import ModelFolder
from cloister.sealed_weights.file import WeightsBundle
from cloister.sealed_weights.header import read_provider_key


class Provision:
    """The model's folder, and what to do with it when its weights are packed, and in the end."""

    def __init__(self, folder: ModelFolder, unsealing: Unsealing | None = None) -> None:
        self.folder = folder
        self._unsealing = unsealing

    async def packed(self) -> None:
        """The weights are packed and every process that needs the folder's other files may still read them."""
        if self._unsealing:
            await self._unsealing.lock()

    async def close(self) -> None:
        if self._unsealing:
            await self._unsealing.close()


async def provide(start: StartController, settings: Settings, console: Console) -> tuple[Provision, Settings]:
    """The model, and the settings with the address that was promised while the server waited for it."""
    provider = settings.controller.provider_key
    if settings.controller.sealed_weights is None or provider is None:
        return Provision(ModelFolder(start.name, Path(start.path), {})), settings
    bundle = WeightsBundle.open(settings.controller.sealed_weights, read_provider_key(provider))
    try:
        key, gateway = await _delivered(bundle, settings, console)
    finally:
        bundle.close()
    unsealing = Unsealing()
    try:
        folder = await unsealing.unseal(start.name, settings.controller.sealed_weights, provider, key)
    except BaseException:
        await unsealing.close()
        raise
    return Provision(folder, unsealing), settings.model_copy(update={"gateway": gateway})


async def _delivered(bundle: WeightsBundle, settings: Settings, console: Console) -> tuple[bytearray, GatewaySettings]:
    delivery = Delivery(bundle, settings)
    try:
        url = await delivery.open()
        console.print(f"{bundle.header.model} is sealed; waiting for its key at {url}", soft_wrap=True)
        console.print(f"  cloister weights release {url} --key FILE --policy FILE", markup=False, soft_wrap=True)
        key = await asyncio.shield(delivery.key)
    finally:
        await delivery.close()
    return key, settings.gateway.model_copy(update={"port": int(url.rpartition(":")[2])})
