"""The `cloister` command. Nothing heavy is imported at a command's top, so that `--help` answers at once."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cloister.cli.attest import attest
from cloister.cli.cache import cache
from cloister.cli.chat import chat
from cloister.cli.extensions import EXTENSIONS, command_of
from cloister.cli.key import key
from cloister.cli.log import log
from cloister.cli.obfuscate import obfuscate
from cloister.cli.options import FriendlyGroup
from cloister.cli.proxy import proxy
from cloister.cli.release import release
from cloister.cli.serve import serve
from cloister.cli.vault import vault
from cloister.cli.verify import verify
from cloister.cli.weights import models, weights


class Commands(FriendlyGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *EXTENSIONS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in EXTENSIONS:
            return command_of(EXTENSIONS[cmd_name])
        return super().get_command(ctx, cmd_name)


def version() -> None:
    """Print the version."""
    from cloister import __version__

    typer.echo(f"cloister {__version__}")


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


def main(
    wanted: Annotated[
        bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Serve language models to people who need not trust the provider.

    Begin with `cloister serve`, then `cloister chat --allow-software-tee` in another terminal.
    """


app = typer.Typer(
    name="cloister",
    cls=Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,  # its tracebacks may show local variables, and those may hold a prompt
)
app.callback()(main)
for command in (serve, chat, verify, proxy, obfuscate, models, version):
    app.command()(command)
app.add_typer(attest, name="attest")
app.add_typer(cache, name="cache")
app.add_typer(key, name="key")
app.add_typer(log, name="log")
app.add_typer(release, name="release")
app.add_typer(vault, name="vault")
app.add_typer(weights, name="weights")
