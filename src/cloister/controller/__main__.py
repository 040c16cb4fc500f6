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
from cloister.controller.frontend import Gateway, SealedApi
from cloister.controller.process import Controller
from cloister.controller.provision import Provision, provide
from cloister.controller.ready import say_ready
from cloister.errors import where_raised
from cloister.messages.lifecycle import StartController
from cloister.process.entry import run_server, unless_stopped


async def _serve(start: StartController, console: Console, stopped: asyncio.Task[Any]) -> None:
    asyncio.get_running_loop().set_exception_handler(_report)
    # The model; its provider may let us wait for it.
    providing = provide(start, Settings.model_validate_json(start.settings), console)
    if (given := await unless_stopped(stopped, providing)) is None:
        return
    provision, settings = given
    folder = provision.folder
    controller = Controller(folder, settings)
    gateway = Gateway(controller.relay, controller.sealed_requests, controller.evidence_maker, folder, settings.gateway)
    degraded = settings.controller.allow_degraded_sandbox
    sealed_api = SealedApi(
        controller.relay, controller.sealed_requests, folder, settings.gateway, allow_degraded=degraded
    )
    try:
        with console.status(f"Loading {start.name}…"):
            url = await unless_stopped(stopped, _start(controller, sealed_api, gateway, provision))
        if url is not None:
            seconds = monotonic() - start.begun
            say_ready(console, url, start.name, controller.serving, settings, controller.evidence_maker.tee, seconds)
            await stopped
    finally:
        await gateway.close()
        await sealed_api.close()
        await controller.close()
        await provision.close()


async def _start(controller: Controller, sealed_api: SealedApi, gateway: Gateway, provision: Provision) -> str:
    """The frontends import while the model loads; the gateway opens its doors when all is ready. Its URL."""
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
