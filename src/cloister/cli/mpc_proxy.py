"""`cloister mpc proxy`: a local OpenAI endpoint that shares prompts out to parties; only shares leave this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.config import GatewaySettings, MpcSettings

if TYPE_CHECKING:
    from cloister.models.source import ModelFolder

_MPC = MpcSettings()
PATIENCE_S = 60.0
REQUEST_S = 3600.0
"""On shares a token takes seconds, and over a slow network minutes."""


def proxy(
    parties: Annotated[Path, typer.Option(metavar="FILE", help="parties.toml: who and where the parties are.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="The model dealt to them: its folder, of which only config and tokenizer are read.",
            show_default="SmolLM2-135M-Instruct",
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Our client key; its certificate lies beside it.", show_default="keys/client-clerk.key"
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen on 127.0.0.1; 0: any free port.")] = 8002,
    context: Annotated[int, typer.Option(min=32, help="Longest prompt plus answer, in tokens.")] = _MPC.max_context,
    drafts: Annotated[
        int,
        typer.Option(min=0, max=15, help="Tokens guessed ahead and verified in one pass; the parties see how many."),
    ] = 3,
) -> None:
    """Give programs on this machine an OpenAI endpoint whose prompts leave it as secret shares alone.

    The parties compute the answer's tokens on shares and this process puts them together: no party, and nobody who
    runs fewer than two of them, learns the prompt or the answer. See docs/mpc.md for what they do learn.

    Examples:

      cloister mpc proxy --parties parties.toml

      OPENAI_BASE_URL=http://127.0.0.1:8002/v1 OPENAI_API_KEY=cloister-dev my-program

      cloister chat --url http://127.0.0.1:8002 --insecure-plaintext    # plain HTTP, but only to this machine
    """
    import asyncio

    from cloister.models.source import find_model
    from cloister.process.hardening import forbid_core_dumps

    forbid_core_dumps()
    settings = GatewaySettings(port=port, request_timeout_s=REQUEST_S)
    asyncio.run(_serve(find_model(model), parties, key, settings, context, drafts))


async def _serve(
    folder: ModelFolder, file: Path, key: Path | None, settings: GatewaySettings, context: int, drafts: int
) -> None:
    from time import time

    from cloister.gateway.app import create_app
    from cloister.gateway.server import serve
    from cloister.models.tokenizer import Tokenizer
    from cloister.mpc.client.backend import ClientBackend
    from cloister.mpc.client.client import make_client
    from cloister.mpc.client.passes import ModelAtParties

    typer.secho("Waiting for the parties…", dim=True, err=True)
    parties = await ModelAtParties.reach(file, PATIENCE_S, key)
    backend = ClientBackend(
        lambda say: make_client(parties, folder, say, max_context=context, draft_tokens=drafts),
        parties.vocabulary,
        context,
    )
    app = create_app(backend, Tokenizer(folder), folder.name, settings, int(time()))

    def ready(url: str) -> None:
        typer.echo(f"Model     {folder.name}, on shares")
        typer.echo(f"API       {url}/v1")
        typer.echo("Ctrl-C ends it.")

    try:
        await serve(app, settings, ready)
    finally:
        await backend.close()
        await parties.close()
