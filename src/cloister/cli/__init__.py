"""The `cloister` command. Nothing heavy is imported at a command's top, so that `--help` answers at once."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer

from cloister.cli.attest import attest
from cloister.cli.cache import cache
from cloister.cli.chat import chat
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
from cloister.errors import SetupError

GROUP = "cloister.commands"


@dataclass(frozen=True, slots=True)
class Extension:
    name: str
    distribution: str
    purpose: str

    @property
    def install(self) -> str:
        return f"Install it: pip install {self.distribution} (in a checkout: pip install -e src/{self.folder})."

    @property
    def folder(self) -> str:
        return self.distribution.replace("-", "_")


_ALL = (
    Extension("bench", "cloister-bench", "Measure servers: Cloister's, or others that have OpenAI's API."),
    Extension("mpc", "cloister-mpc", "Generate on secret shares: parties, provider and client of the level mpc."),
)
EXTENSIONS = {extension.name: extension for extension in _ALL}


def command_of(extension: Extension) -> Any:
    """The extension's command group; where its distribution is absent, a command that says what to install."""
    found = tuple(entry_points(group=GROUP, name=extension.name))
    group = found[0].load() if found else _absent(extension)
    command = typer.main.get_command(group)
    command.name = extension.name
    return command


def _absent(extension: Extension) -> typer.Typer:
    app = typer.Typer()

    @app.command(
        help=f"{extension.purpose} Not installed.",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    )
    def absent(ctx: typer.Context) -> None:
        raise SetupError(
            f"`cloister {extension.name}` is in the distribution {extension.distribution}, which is not installed.",
            hint=extension.install,
        )

    return app


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
