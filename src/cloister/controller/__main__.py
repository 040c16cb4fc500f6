"""Entry of the controller: `cloister serve` becomes `python -m cloister.controller FD`, in the same process.

FD is a memory file with the settings. Nothing printed here comes from a request.
"""

from __future__ import annotations

import asyncio
import logging
import os
from time import monotonic
from typing import Any

from rich.console import Console
from rich.markup import escape

from cloister.attest.attester import Tee
from cloister.config import DEVELOPMENT_KEY, Settings
from cloister.controller.admission import Admission
from cloister.controller.frontend import Gateway, SealedApi
from cloister.controller.process import Controller
from cloister.controller.provision import Unsealing, provide
from cloister.errors import where_raised
from cloister.levels import MPC
from cloister.messages.frontend import Serving
from cloister.messages.lifecycle import StartController
from cloister.process.entry import run_server, unless_stopped


async def _serve(start: StartController, console: Console, stopped: asyncio.Task[Any]) -> None:
    asyncio.get_running_loop().set_exception_handler(_report)
    settings = Settings.model_validate_json(start.settings)
    admission = Admission(settings.gateway)
    if settings.controller.sealed_weights is not None:
        _give_up(start.reserved)  # who waits for their key listens there now
    # The model; its provider may let us wait for it.
    providing = provide(start, settings, console)
    if (given := await unless_stopped(stopped, providing)) is None:
        return
    folder, settings, unsealing = given
    controller = Controller(folder, settings)
    gateway = Gateway(controller, folder, settings, admission.keys)
    sealed_api = SealedApi(controller, folder, settings, admission.keys)
    admission.watch(gateway, sealed_api)
    try:
        with console.status(f"Loading {start.name}…"):
            starting = _start(controller, sealed_api, gateway, unsealing, start.reserved)
            url = await unless_stopped(stopped, starting)
        if url is not None:
            seconds = monotonic() - start.begun
            name = settings.gateway.served_model_name or start.name
            _say_ready(console, url, name, controller.serving, settings, controller.evidence_maker.tee, seconds)
            await stopped
    finally:
        await gateway.close()
        await sealed_api.close()
        await controller.close()
        if unsealing:
            await unsealing.close()


async def _start(
    controller: Controller, sealed_api: SealedApi, gateway: Gateway, unsealing: Unsealing | None, reserved: int | None
) -> str:
    """The gateway listens only when all is ready. Its URL."""
    serving = await controller.start()
    if unsealing:
        await unsealing.lock()
    await sealed_api.open(serving)
    if unsealing is None:
        _give_up(reserved)
    return await gateway.serve(serving)


def _give_up(reserved: int | None) -> None:
    """The port is for the process that listens next."""
    if reserved is not None:
        os.close(reserved)


def _say_ready(
    console: Console, url: str, model: str, serving: Serving, settings: Settings, tee: Tee, seconds: float
) -> None:
    key = "$CLOISTER_API_KEY" if settings.gateway.keys_file else DEVELOPMENT_KEY
    facts = f"{settings.engine.dtype}, {serving.kernels} kernels, context {serving.max_context}"
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
    console.print(
        f"[bold green]Cloister[/] serves [bold]{escape(model)}[/] ({facts}); ready in {seconds:.1f} s", soft_wrap=True
    )
    console.print(f"  page  {url}/\n  API   {url}/v1\n", soft_wrap=True)
    if serving.missing_layers:
        console.print(
            f"[yellow]The sandbox lacks {', '.join(serving.missing_layers)} on this machine.[/]\n",
            soft_wrap=True,
        )
    if MPC in serving.levels:
        console.print(f"{_about_mpc(settings)}\n", soft_wrap=True)
    if settings.gateway.keys_file is None:
        console.print(
            f"[yellow]Anyone on this machine may use it with the development key {key}.[/] "
            "`cloister key new TENANT` makes real keys.\n",
            soft_wrap=True,
        )
    if tee == "none":
        console.print("[yellow]No hardware speaks for this machine: clients refuse it unless told otherwise.[/]\n")
    options = ("" if url.endswith(":8000") else f" --url {url}") + (" --allow-software-tee" if tee == "none" else "")
    console.print(f"Try it:  cloister chat{options}", soft_wrap=True)
    for line in (
        f"     or  curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\",
        f'           -H "Authorization: Bearer {key}" \\',
        f"           -d '{body}'",
    ):
        console.print(line, markup=False, soft_wrap=True)


def _about_mpc(settings: Settings) -> str:
    if settings.mpc.parties is not None:
        return "Level mpc: computed by the parties that --mpc-parties names."
    when = "are being started" if settings.mpc.mode == "local" else "start with the first request for it"
    return f"Level mpc: three parties on this machine {when}; with the default model they take about 9 GB of memory."


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """asyncio would print what failed together with what it was given."""
    error = context.get("exception")
    logging.getLogger("cloister").error("The controller failed: %s.", where_raised(error) if error else "no exception")


if __name__ == "__main__":
    run_server("controller", _serve)
