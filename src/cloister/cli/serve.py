"""`cloister serve`: settings from the command line, then model, service process and HTTP edge, in that order.

The parts are built elsewhere; this file only joins them and says how it goes. Nothing it prints comes from a request.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import perf_counter, time
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.config import (
    DEVELOPMENT_KEY,
    Dtype,
    EngineSettings,
    GatewaySettings,
    KernelChoice,
    Settings,
    WeightFormat,
)

if TYPE_CHECKING:
    from rich.console import Console

_ENGINE = EngineSettings()
_GATEWAY = GatewaySettings()


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on. Other than loopback needs --keys.")] = _GATEWAY.host,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = _GATEWAY.port,
    model: Annotated[
        str | None,
        typer.Option(
            help="A model's folder, a GGUF file, or a hub id where there is network.",
            show_default="SmolLM2-135M-Instruct",
        ),
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="Precision of weights and arithmetic.")] = _ENGINE.dtype,
    weights: Annotated[
        WeightFormat, typer.Option(help="int8: weights take half the memory; slower, and the model differs slightly.")
    ] = _ENGINE.weights,
    keys: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keys file.", show_default="the development key, on loopback only"),
    ] = None,
    threads: Annotated[int, typer.Option(min=0, help="Compute threads; 0: every core.")] = _ENGINE.threads,
    kernels: Annotated[KernelChoice, typer.Option(help="Which kernels compute.")] = _ENGINE.kernels,
    kv_cache_mib: Annotated[int, typer.Option(min=1, help="Memory for the KV cache.")] = _ENGINE.kv_cache_mib,
    max_running: Annotated[int, typer.Option(min=1, help="Sequences decoded at once.")] = _ENGINE.max_running,
    chunk_tokens: Annotated[int, typer.Option(min=1, help="Tokens in one step.")] = _ENGINE.chunk_tokens,
    max_context: Annotated[
        int, typer.Option(min=0, help="Longest prompt plus answer; 0: what the model allows.")
    ] = _ENGINE.max_context,
    max_waiting: Annotated[int, typer.Option(min=1, help="Requests that may wait for a place.")] = _ENGINE.max_waiting,
    request_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds one request may take.")
    ] = _GATEWAY.request_timeout_s,
) -> None:
    """Serve a model through an OpenAI-compatible API and a chat page.

    Examples:

      cloister serve

      cloister serve --model ./my-model --dtype fp32 --port 9000

      cloister serve --host 0.0.0.0 --keys keys.toml    # see `cloister key new`
    """
    settings = Settings(
        model=model,
        engine=EngineSettings(
            dtype=dtype,
            weights=weights,
            kernels=kernels,
            threads=threads,
            kv_cache_mib=kv_cache_mib,
            max_running=max_running,
            chunk_tokens=chunk_tokens,
            max_context=max_context,
            max_waiting=max_waiting,
        ),
        gateway=GatewaySettings(host=host, port=port, keys_file=keys, request_timeout_s=request_timeout),
    )
    import uvloop

    uvloop.run(_serve(settings))


async def _serve(settings: Settings) -> None:
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    begun = perf_counter()
    with console.status("Starting…"):
        from cloister.gateway.keys import load_keys

        load_keys(settings.gateway)  # a wrong keys file should not cost the time to load a model
        from cloister.hardening import forbid_core_dumps, hide_tracebacks
        from cloister.models.source import find_model
        from cloister.service.handle import ServiceHandle
    folder = find_model(settings.model)
    forbid_core_dumps()
    hide_tracebacks()
    with console.status(f"Loading {folder.name}…"):
        loading = asyncio.create_task(ServiceHandle.start(folder, settings.engine))
        await asyncio.sleep(0)  # the service's process loads the model while this one imports the rest
        try:
            from cloister.gateway.app import create_app
            from cloister.gateway.server import serve as serve_http
            from cloister.models.tokenizer import Tokenizer

            tokenizer = Tokenizer(folder)
        except BaseException:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
            raise
        backend = await loading
    try:
        app = create_app(backend, tokenizer, folder.name, settings.gateway, int(time()))
        facts = f"{settings.engine.dtype}, {backend.ready.kernels} kernels, context {backend.ready.max_context}"
        await serve_http(
            app,
            settings.gateway,
            lambda url: _say_ready(console, url, folder.name, facts, settings, perf_counter() - begun),
        )
    finally:
        await backend.close()
    console.print("Stopped.")


def _say_ready(console: Console, url: str, model: str, facts: str, settings: Settings, seconds: float) -> None:
    key = "$CLOISTER_API_KEY" if settings.gateway.keys_file else DEVELOPMENT_KEY
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
    console.print(
        f"[bold green]Cloister[/] serves [bold]{model}[/] ({facts}); ready in {seconds:.1f} s", soft_wrap=True
    )
    console.print(f"  page  {url}/\n  API   {url}/v1\n", soft_wrap=True)
    if settings.gateway.keys_file is None:
        console.print(
            f"[yellow]Anyone on this machine may use it with the development key {key}.[/] "
            "`cloister key new TENANT` makes real keys.\n",
            soft_wrap=True,
        )
    console.print("Try it:  cloister chat" + ("" if url.endswith(":8000") else f" --url {url}"), soft_wrap=True)
    for line in (
        f"     or  curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\",
        f'           -H "Authorization: Bearer {key}" \\',
        f"           -d '{body}'",
    ):
        console.print(line, markup=False, soft_wrap=True)
