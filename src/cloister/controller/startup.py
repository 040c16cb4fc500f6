"""From settings to a node that listens, and to its end. No text of a request is printed here."""

import asyncio
import logging
import os
from time import monotonic
from typing import Any

from rich.console import Console

from cloister.config import Settings
from cloister.controller.banner import say_ready, say_where_vaults_live
from cloister.controller.frontend import Admission, Gateway, SealedApi
from cloister.controller.process import Controller
from cloister.controller.provision import Provided, Unsealing, provide
from cloister.errors import where_raised
from cloister.messages.cli_controller import StartController
from cloister.process.code import Code
from cloister.process.entry import unless_stopped


async def serve(start: StartController, code: Code, console: Console, stopped: asyncio.Task[Any]) -> None:
    """Until `stopped` is done, or until `code`, from which all processes are forked, is lost."""
    asyncio.get_running_loop().set_exception_handler(_report)
    settings = Settings.model_validate_json(start.settings)
    admission = Admission(settings.gateway)
    if settings.controller.sealed_weights is not None:
        _release(start.reserved)  # while the node waits for the weights' key, key waiting listens there
    given = await unless_stopped(stopped, provide(start, settings, console), code.close)
    if given is not None:
        await _serve_model(start, given, admission, code, console, stopped)


async def _serve_model(
    start: StartController,
    given: Provided,
    admission: Admission,
    code: Code,
    console: Console,
    stopped: asyncio.Task[Any],
) -> None:
    folder, settings, unsealing = given
    controller = Controller(folder, settings)
    gateway = Gateway(controller, folder, settings, admission.keys)
    sealed_api = SealedApi(controller, folder, settings, admission.keys)
    controller.relay.admit(admission.keys)
    admission.watch(gateway, sealed_api, controller.relay)
    url: str | None = None
    try:
        with console.status(f"Loading {start.name}…"):
            starting = _start(settings, controller, sealed_api, gateway, unsealing, start.reserved)
            url = await unless_stopped(stopped, starting, code.close)  # a process that still loads can only be killed
        if url is not None:
            seconds = monotonic() - start.begun
            name = settings.gateway.served_model_name or start.name
            tee, notes = controller.evidence_maker.tee, controller.notes
            say_ready(console, url, name, controller.relay.serving(), settings, tee, seconds, notes)
            say_where_vaults_live(console, settings, controller.relay.vaults.trouble)
            await unless_stopped(stopped, code.lost())
    finally:
        if url is None:
            await code.close()  # its children have no request to end
        await gateway.close()
        await sealed_api.close()
        await controller.close()
        if unsealing:
            await unsealing.close()


async def _start(
    settings: Settings,
    controller: Controller,
    sealed_api: SealedApi,
    gateway: Gateway,
    unsealing: Unsealing | None,
    reserved: int | None,
) -> str:
    serving = await controller.start()
    if settings.controller.vault_host is not None:
        await controller.relay.vaults.try_one()
    if unsealing:
        await unsealing.lock()
    await sealed_api.open(serving)
    if unsealing is None:
        _release(reserved)
    return await gateway.serve(serving)


def _release(reserved: int | None) -> None:
    if reserved is not None:
        os.close(reserved)


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """asyncio's own handler would print the arguments of the call that failed."""
    error = context.get("exception")
    logging.getLogger("cloister").error("The controller failed: %s.", where_raised(error) if error else "no exception")
