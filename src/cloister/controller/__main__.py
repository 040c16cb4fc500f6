"""Entry of the controller: `cloister serve` becomes `python -m cloister.controller FD`, in the same process.

FD is a memory file with the settings. Nothing printed here comes from a request.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import Any

from rich.console import Console

from cloister.config import Settings
from cloister.controller.gateway import Gateway
from cloister.controller.process import Controller
from cloister.controller.provision import Provision, provide
from cloister.controller.ready import say_ready
from cloister.controller.sealed_api import SealedApi
from cloister.errors import where_raised
from cloister.messages.lifecycle import StartController
from cloister.process.entry import run_server


async def _serve(start: StartController, console: Console, stopped: asyncio.Task[Any]) -> None:
    asyncio.get_running_loop().set_exception_handler(_report)
    given = await _given(start, stopped, console)
    if given is None:
        return
    provision, settings = given
    folder = provision.folder
    controller = Controller(folder, settings)
    gateway = Gateway(controller.relay, controller.secure, controller.notary, folder, settings.gateway)
    degraded = settings.controller.allow_degraded_sandbox
    sealed_api = SealedApi(controller.relay, controller.secure, folder, settings.gateway, allow_degraded=degraded)
    starting = asyncio.create_task(_start(controller, sealed_api, gateway, provision))
    try:
        with console.status(f"Loading {start.name}…"):
            await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            say_ready(
                console,
                starting.result(),
                start.name,
                controller.serving,
                settings,
                controller.notary.tee,
                monotonic() - start.begun,
            )
            await stopped
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await gateway.close()
        await sealed_api.close()
        await controller.close()
        await provision.close()


async def _given(
    start: StartController, stopped: asyncio.Task[Any], console: Console
) -> tuple[Provision, Settings] | None:
    """The model; its provider may let us wait for it. None if we are told to stop before it comes."""
    providing = asyncio.create_task(provide(start, Settings.model_validate_json(start.settings), console))
    await asyncio.wait((providing, stopped), return_when=asyncio.FIRST_COMPLETED)
    if providing.done():
        return providing.result()
    providing.cancel()
    await asyncio.gather(providing, return_exceptions=True)
    return None


async def _start(controller: Controller, sealed_api: SealedApi, gateway: Gateway, provision: Provision) -> str:
    """The fronts import while the model loads; the gateway opens its doors when all is ready. Its URL."""
    gateway.start()
    sealed_api.start()
    serving = await controller.start()
    await provision.packed()
    await sealed_api.open(serving)
    return await gateway.serve(serving)


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """asyncio would print what failed together with what it was given."""
    error = context.get("exception")
    logging.getLogger("cloister").error("The controller failed: %s.", where_raised(error) if error else "no exception")


if __name__ == "__main__":
    run_server("controller", _serve)
