"""From settings to a node that listens, and to its end. No text of a request is printed here."""

import asyncio
import logging
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console
from rich.markup import escape

from cloister.attest.attester import Tee
from cloister.certificate import last_day, read_certificate
from cloister.config import DEVELOPMENT_KEY, ControllerSettings, Settings
from cloister.controller.frontend import Admission, Gateway, SealedApi
from cloister.controller.process import Controller
from cloister.controller.provision import provide
from cloister.errors import CloisterError, where_raised
from cloister.messages.cli_controller import StartController
from cloister.messages.controller_frontend import Serving
from cloister.prefix.public_pages import attack_gain
from cloister.process.code import Code
from cloister.process.entry import unless_stopped

log = logging.getLogger("cloister")


def command_as_typed() -> str:
    script = Path(sys.executable).with_name("cloister")
    found = shutil.which("cloister")
    if found is not None and Path(found) == script:
        return "cloister"
    if not script.exists():
        return f"{shlex.quote(sys.executable)} -m cloister"
    here = Path.cwd()
    return shlex.quote(str(script.relative_to(here) if script.is_relative_to(here) else script))


def say_ready(
    console: Console,
    url: str,
    model: str,
    serving: Serving,
    settings: Settings,
    tee: Tee,
    seconds: float,
    notes: Sequence[str] = (),
) -> None:
    key = "$CLOISTER_API_KEY" if settings.gateway.keys_file else DEVELOPMENT_KEY
    facts = f"{settings.engine.weights_form}, {serving.kernels} kernels, context {serving.max_context}"
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello!"}}], "temperature": 0.2}}'
    console.print(
        f"[bold green]Cloister[/] serves [bold]{escape(model)}[/] ({facts}); ready in {seconds:.1f} s", soft_wrap=True
    )
    console.print(f"  page  {url}/\n  API   {url}/v1\n", soft_wrap=True)
    if serving.missing_layers:
        lacks = f"[yellow]The sandbox lacks {', '.join(serving.missing_layers)} on this machine.[/]"
        known = _REMEDIES if settings.engine.kind == "own" else {}
        to_mend = "".join(f"\n  {known[layer]}" for layer in serving.missing_layers if layer in known)
        console.print(f"{lacks}{to_mend}\n", soft_wrap=True)
    for note in notes:
        console.print(f"{escape(note)}\n", soft_wrap=True)
    if settings.gateway.keys_file is None:
        console.print(
            f"[yellow]Anyone on this machine may use it with the development key {key}.[/] "
            f"`{escape(command_as_typed())} key new TENANT --into keys.toml` makes real keys.\n",
            soft_wrap=True,
        )
    else:
        again = f"`kill -HUP {os.getpid()}` has this server read them again."
        console.print(f"Keys: {escape(str(settings.gateway.keys_file))}. {again}\n", soft_wrap=True)
        if (about := about_sharing(settings.controller)) is not None:
            console.print(f"{about}\n", soft_wrap=True)
    if settings.gateway.tls_cert is not None:
        again = f"`kill -HUP {os.getpid()}` has this server read it again."
        console.print(f"Certificate: {escape(str(settings.gateway.tls_cert))}. {again}\n", soft_wrap=True)
    if tee == "none":
        console.print("[yellow]No hardware speaks for this machine: clients refuse it by default.[/]\n")
    options = ("" if url.endswith(":8000") else f" --url {url}") + (" --allow-software-tee" if tee == "none" else "")
    for line in (
        f"Try it:  {command_as_typed()} chat{options}",
        f"     or  curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\",
        f'           -H "Authorization: Bearer {key}" \\',
        f"           -d '{body}'",
    ):
        console.print(line, markup=False, soft_wrap=True)


def about_sharing(settings: ControllerSettings) -> str | None:
    """The attacker's bound beside ε and T."""
    if settings.shared_policy != "counted":
        return None
    epsilon, threshold = settings.share_epsilon, settings.share_threshold
    gains = " / ".join(f"{attack_gain(count, epsilon, threshold):.0e}" for count in (1, 5, 7))
    shared = f"At shared, all tenants find beginnings that more than {threshold} accounts sent (noise ε = {epsilon:g})."
    return f"{shared} A guess at one account's text succeeds with probability {gains} for 1 / 5 / 7 colluding accounts."


def say_where_vaults_live(console: Console, settings: Settings, trouble: CloisterError | None) -> None:
    host = settings.controller.vault_host
    if host is None:
        return
    if trouble is None:
        console.print(f"\nVaults live on {host}, which answers.", markup=False, soft_wrap=True)
    else:
        words = f"\nThere are no vaults: {trouble} Requests that need one get 503; it is tried again every second."
        console.print(words, style="red", markup=False, soft_wrap=True)


_REMEDIES = {
    "memory_lock": "memory_lock keeps prompts out of swap: `ulimit -l unlimited` before the start, "
    "LimitMEMLOCK=infinity in a systemd unit, or CAP_IPC_LOCK.",
    "no_swap": "no_swap: this machine has swap that prompts may reach; `swapoff -a`.",
    "no_devices": "no_devices: service and vaults hold the GPU open; `--kernels native` computes without.",
    "gpu_in_turns": "gpu_in_turns: service and vaults compute on the GPU at the same time, as clients of NVIDIA's MPS; "
    "`--gpu-in-turns` gives it to one after the other, without the level partitioned.",
    "own_attention": "own_attention: a process on the GPU holds the keys and values of several users' prompts; "
    "`--gpu-in-turns` has no such process, and no level partitioned.",
}


async def serve(start: StartController, code: Code, console: Console, stopped: asyncio.Task[Any]) -> None:
    """Until `stopped` is done, or until `code`, from which all processes are forked, is lost."""
    asyncio.get_running_loop().set_exception_handler(_report)
    settings = Settings.model_validate_json(start.settings)
    admission = Admission(settings.gateway)
    if settings.controller.sealed_weights is not None:
        _release(start.reserved)  # while the node waits for the weights' key, key waiting listens there
    given = await unless_stopped(stopped, provide(start, settings, console), code.close)
    if given is None:
        return
    folder, settings, unsealing = given
    controller = Controller(folder, settings)
    controller.relay.admit(admission.keys)  # before processes start: the usage file may be unusable
    gateway = Gateway(controller, folder, settings, admission.keys)
    sealed_api = SealedApi(controller, folder, settings, admission.keys)
    admission.watch(gateway.admit, sealed_api.admit, controller.relay.admit)
    if (certificate := read_certificate(settings.gateway)) is not None:
        gateway.show(certificate)
        _watch_certificate(gateway, admission)

    async def begin() -> str:
        serving = await controller.start()
        if settings.controller.vault_host is not None:
            await controller.relay.vaults.try_one()
        if unsealing:
            await unsealing.lock()
        await sealed_api.open(serving)
        if unsealing is None:
            _release(start.reserved)
        return await gateway.serve(serving)

    url: str | None = None
    try:
        with console.status(f"Loading {start.name}…"):
            url = await unless_stopped(stopped, begin(), code.close)  # a process that still loads can only be killed
        if url is not None:
            seconds = monotonic() - start.begun
            name = settings.gateway.served_model_name or start.name
            tee, notes = controller.evidence_maker.tee, controller.notes
            log.info("The node listens at %s; ready in %.1f s.", url, seconds)
            say_ready(console, url, name, controller.relay.serving(), settings, tee, seconds, notes)
            say_where_vaults_live(console, settings, controller.relay.vaults.trouble)
            _drain_first(gateway, settings.gateway.drain_s)
            await unless_stopped(stopped, code.lost())
    finally:
        if url is None:
            await code.close()  # its children have no request to end
        await gateway.close()
        await sealed_api.close()
        await controller.close()
        if unsealing:
            await unsealing.close()


def _drain_first(gateway: Gateway, most_s: float) -> None:
    """SIGTERM lets requests end that run; a second one, or Ctrl-C, ends the node at once."""
    loop, draining = asyncio.get_running_loop(), set[asyncio.Task[None]]()

    async def drain() -> None:
        await gateway.drain(most_s)
        signal.raise_signal(signal.SIGINT)

    def asked() -> None:
        if draining or not most_s:
            signal.raise_signal(signal.SIGINT)
        else:
            draining.add(loop.create_task(drain()))

    loop.add_signal_handler(signal.SIGTERM, asked)


def _watch_certificate(gateway: Gateway, admission: Admission) -> None:
    """SIGHUP reads it again beside the keys. Files that cannot be used change nothing."""

    def hung_up() -> None:
        admission.hung_up()
        try:
            certificate = read_certificate(gateway.settings)
        except CloisterError as wrong:
            log.error("The certificate stays as it was. %s", wrong)
            return
        if certificate is not None:
            gateway.show(certificate)
            log.warning("The certificate was read again; its last day is %s.", last_day(certificate))

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hung_up)


def _release(reserved: int | None) -> None:
    if reserved is not None:
        os.close(reserved)


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """asyncio's own handler would print the arguments of the call that failed."""
    error = context.get("exception")
    log.error("The controller failed: %s.", where_raised(error) if error else "no exception")
