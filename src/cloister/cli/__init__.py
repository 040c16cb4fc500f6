"""The `cloister` command. Nothing heavy is imported at a command's top, so that `--help` answers at once."""

from importlib.metadata import entry_points
from typing import Annotated, Any

import typer

from cloister.cli.attest import attest
from cloister.cli.audit import audit
from cloister.cli.cache import cache
from cloister.cli.chat import chat
from cloister.cli.cloud import cloud
from cloister.cli.config import config
from cloister.cli.issuer import issuer
from cloister.cli.key import key
from cloister.cli.log import log
from cloister.cli.obfuscate import obfuscate
from cloister.cli.options import FriendlyGroup
from cloister.cli.proxy import proxy
from cloister.cli.relay import relay
from cloister.cli.release import release
from cloister.cli.serve import serve
from cloister.cli.up import up
from cloister.cli.usage import usage
from cloister.cli.vault import vault
from cloister.cli.verify import verify
from cloister.cli.weights import models, weights
from cloister.errors import SetupError

EXTENSIONS = {
    "bench": "Measure servers: Cloister's, or others that have OpenAI's API.",
    "plan": "Plan a cloud: nodes, memory and cost for a number of users.",
    "mpc": "Generate on secret shares: parties, provider and client of the level mpc.",
}  # commands of other distributions of this repository
_BROUGHT_BY = {"plan": "bench"}  # where the distribution is not named as the command


def _absent(name: str) -> typer.Typer:
    """A command that says what to install."""
    app = typer.Typer()
    any_words = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}

    @app.command(help=f"{EXTENSIONS[name]} Not installed.", context_settings=any_words)
    def absent(ctx: typer.Context) -> None:
        part = _BROUGHT_BY.get(name, name)
        hint = f"Install it: pip install cloister-{part} (in a checkout: pip install -e src/cloister_{part})."
        raise SetupError(f"`cloister {name}` comes with cloister-{part}, which is not installed.", hint=hint)

    return app


class Commands(FriendlyGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *EXTENSIONS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in EXTENSIONS:
            return super().get_command(ctx, cmd_name)
        found = tuple(entry_points(group="cloister.commands", name=cmd_name))
        command = typer.main.get_command(found[0].load() if found else _absent(cmd_name))
        command.name = cmd_name
        return command


def version() -> None:
    """Print the version."""
    from cloister import __version__

    typer.echo(f"cloister {__version__}")


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


_Version = typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Print the version.")


def main(wanted: Annotated[bool, _Version] = False) -> None:
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
app.command(context_settings={"auto_envvar_prefix": "CLOISTER_SERVE"})(serve)
for command in (chat, verify, audit, proxy, relay, issuer, up, usage, obfuscate, models, config, version):
    app.command()(command)
groups = {"attest": attest, "cache": cache, "cloud": cloud, "key": key, "log": log, "release": release, "vault": vault}
for name, group in (groups | {"weights": weights}).items():
    app.add_typer(group, name=name)
