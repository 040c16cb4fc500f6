"""Commands of other distributions: `cloister bench`, `cloister mpc`, registered under the entry point
`cloister.commands`."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

import typer

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
