"""`cloister mpc`: parties that compute on shares, their keys, and how they are."""

import asyncio
import signal
from contextlib import closing
from pathlib import Path
from time import time
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from cloister.config import GatewaySettings, MpcCache, MpcSettings, cache_folder
from cloister.errors import SetupError
from cloister_mpc.certificates import (
    DEFAULT_CLIENT,
    DEFAULT_CLIENT_KEY,
    Credentials,
    Keys,
    Role,
    fingerprint,
    make_keys,
)
from cloister_mpc.config import PARTIES, read_config
from cloister_mpc.offer import require_packages

mpc = typer.Typer(no_args_is_help=True, help="Generation on secret shares: parties, their keys, their state.")

_MPC = MpcSettings()
_PATIENCE_S = 60.0
_REQUEST_S = 3600.0  # on shares a token takes seconds, and over a slow network minutes

ConfigFile = Annotated[Path, typer.Option("--config", metavar="FILE", help="The parties' settings; the same for all.")]
ClientKey = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Our client key; its certificate lies beside it.", show_default="keys/client-clerk.key"
    ),
]
ModelChoice = Annotated[str | None, typer.Option(help="Folder, GGUF file or hub id.", show_default="the default model")]


@mpc.command("keys")
def keys(
    folder: Annotated[Path, typer.Argument(help="Where to write them; must hold no keys yet.")],
    client: Annotated[list[str] | None, typer.Option(help="A client's name; may be given again.")] = None,
) -> None:
    """Make an authority and certificates for parties, provider and clients.

    Hand every party its own key only, and put `ca.key` away: it can make more of them. The fingerprints go into
    the settings, so that not even the authority can replace a party.

    Example:

      cloister mpc keys keys --client clerk
    """
    made = make_keys(folder, tuple(client or [DEFAULT_CLIENT]))
    for rank in range(PARTIES):
        certificate = made.of(Role("party", str(rank))).certificate
        typer.echo(f"{certificate}: fingerprint {fingerprint(certificate)}")
    typer.echo(f"Keys written to {folder}.", err=True)


@mpc.command("party")
def party(
    config: ConfigFile, rank: Annotated[int, typer.Option(min=0, max=2, help="Which of the parties this is; 0 leads.")]
) -> None:
    """Run one party on this machine until interrupted.

    Example:

      cloister mpc party --config parties.toml --rank 0
    """
    read_config(config)  # an error must come before the process is replaced
    require_packages()
    from cloister_mpc.party.party import become_party

    become_party(config, rank)


@mpc.command("up")
def up(
    folder: Annotated[
        Path | None, typer.Option(help="Keys, settings and shelves.", show_default="cache folder/mpc/aby3")
    ] = None,
    model: ModelChoice = None,
) -> None:
    """Start all parties on this machine, deal them a model, and keep them running until interrupted.

    To try it out, and for tests: parties protect secrets only while no operator runs all of them.

    Examples:

      cloister mpc up

      cloister mpc status --config ~/.cache/cloister/mpc/aby3/parties.toml
    """
    from cloister.models.source import find_model
    from cloister_mpc.local_parties import CONFIG_FILE, KEYS, Supervisor, make_local

    console = Console(stderr=True, highlight=False)
    place = folder or cache_folder() / "mpc" / "aby3"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings = make_local(place)
    require_packages()
    from cloister_mpc.provider.dealing import serve_weights

    for number in (signal.SIGINT, signal.SIGTERM):  # a shell that starts us in the background has SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    with console.status("Looking for the model…"):
        found = find_model(model)
    file = place / CONFIG_FILE
    with closing(Supervisor(file)):
        try:
            asyncio.run(serve_weights(settings, Keys(place / KEYS).provider, found, console))
            console.print(
                f"[bold green]{PARTIES} parties[/] serve [bold]{found.name}[/]; settings: {file}",
                soft_wrap=True,
            )
            signal.pause()
        except KeyboardInterrupt:
            console.print("Stopping…")


@mpc.command("deal")
def deal(
    config: ConfigFile,
    model: ModelChoice = None,
    key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The provider's key; its certificate lies beside it.", show_default="keys/provider.key"
        ),
    ] = None,
) -> None:
    """Deal a model's weights to the parties as secret shares. What they hold already is not dealt again.

    No party learns the weights; two that put their shares together have them. Each keeps about 16 bytes per weight.

    Example:

      cloister mpc deal --config parties.toml --model ./my-model
    """
    from cloister.models.source import find_model

    settings = read_config(config)
    require_packages()
    from cloister_mpc.provider.dealing import serve_weights

    own = key or config.parent / "keys" / "provider.key"
    if not own.is_file():
        raise SetupError(f"There is no provider's key {own}.", hint="`cloister mpc keys` makes one; --key names it.")
    console = Console(stderr=True, highlight=False)
    found = find_model(model)
    asyncio.run(serve_weights(settings, Credentials.beside(own), found, console))
    console.print(f"{len(settings.party)} parties serve {found.name}.", soft_wrap=True)


@mpc.command("status")
def status(
    config: ConfigFile, key: ClientKey = None, json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """Ask every party how it is. Exit status 1 where one is missing or not ready.

    Example:

      cloister mpc status --config parties.toml --json
    """
    from cloister_mpc.client.parties import ask_all

    settings = read_config(config)
    own = Credentials.beside(key or config.parent / DEFAULT_CLIENT_KEY)
    found = asyncio.run(ask_all(settings, own))
    if json:
        typer.echo(msgspec.json.encode({"parties": found}))
    else:
        for each in found:
            state = "ready" if each.ready else each.problem
            facts = f", {each.model}, epoch {each.epoch}, {each.sessions} generations" if each.ready else ""
            typer.echo(f"party {each.rank} ({each.address}): {state}{facts}")
    if not all(each.ready for each in found):
        raise typer.Exit(1)


@mpc.command("proxy")
def proxy(
    parties: Annotated[Path, typer.Option(metavar="FILE", help="parties.toml: who and where the parties are.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="The model dealt to them: its folder, of which only config and tokenizer are read.",
            show_default="SmolLM2-135M-Instruct",
        ),
    ] = None,
    key: ClientKey = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen on 127.0.0.1; 0: any free port.")] = 8002,
    context: Annotated[int, typer.Option(min=32, help="Longest prompt plus answer, in tokens.")] = _MPC.max_context,
    drafts: Annotated[
        int,
        typer.Option(min=0, max=15, help="Tokens guessed ahead and verified in one pass; the parties see how many."),
    ] = 3,
    cache: Annotated[
        MpcCache,
        typer.Option(
            help="full: a token reads the whole prompt. mpcache: a tenth of it; fewer bytes, more time and messages."
        ),
    ] = _MPC.cache,
) -> None:
    """Give programs on this machine an OpenAI endpoint whose prompts leave it as secret shares alone.

    The parties compute the answer's tokens on shares and this process puts them together: an
    operator of one party learns neither the prompt nor the answer. See docs/mpc.md for what they do learn.

    Examples:

      cloister mpc proxy --parties parties.toml

      OPENAI_BASE_URL=http://127.0.0.1:8002/v1 OPENAI_API_KEY=cloister-dev my-program

      cloister chat --url http://127.0.0.1:8002 --insecure-plaintext    # plain HTTP, but only to this machine
    """
    from cloister.gateway.app import create_app
    from cloister.gateway.server import serve
    from cloister.models.source import find_model
    from cloister.port import bind
    from cloister.process.hardening import forbid_core_dumps
    from cloister.prompts.tokenizer import Tokenizer

    forbid_core_dumps()
    settings = GatewaySettings(port=port, request_timeout_s=_REQUEST_S)
    # What is wrong should not cost a minute's wait for the parties.
    read_config(parties)
    require_packages()
    bind(settings).close()
    folder = find_model(model)
    from cloister_mpc.cache.plan import PLANS
    from cloister_mpc.client.backend import ClientBackend
    from cloister_mpc.client.client import make_client
    from cloister_mpc.client.passes import ModelAtParties

    async def serve_proxy() -> None:
        await _say_what_is_awaited(parties, key)
        reached = await ModelAtParties.reach(parties, _PATIENCE_S, key, cache=PLANS[cache])
        backend = ClientBackend(
            lambda say: make_client(reached, folder, say, max_context=context, draft_tokens=drafts),
            reached.shape.vocabulary,
            context,
        )
        app = create_app(backend, Tokenizer(folder), folder.name, settings, int(time()))
        said = "Model     {}, on shares\nAPI       {}/v1\nCtrl-C ends it."
        try:
            await serve(app, settings, lambda url: typer.echo(said.format(folder.name, url)))
        finally:
            await backend.close()
            await reached.close()

    asyncio.run(serve_proxy())


async def _say_what_is_awaited(file: Path, key: Path | None) -> None:
    from cloister_mpc.client.parties import ask_all

    typer.secho("Waiting for the parties…", dim=True, err=True)
    own = key or file.parent / DEFAULT_CLIENT_KEY
    if not own.is_file():
        return  # ModelAtParties.reach raises the error
    for each in await ask_all(read_config(file), Credentials.beside(own)):
        if not each.ready:
            dealt = f"; `cloister mpc deal --config {file}` deals them" if "dealt" in each.problem else ""
            typer.echo(f"  party {each.rank} ({each.address}): {each.problem}{dealt}", err=True)
