"""What all commands share: options that read the same everywhere, and how an error is reported.

An error says what went wrong and what to do next; there is no traceback for what we foresaw.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cloister.config import DEVELOPMENT_KEY
from cloister.errors import CloisterError, InvalidRequest, SetupError

USAGE_EXIT = 2
FAILURE_EXIT = 1


def exit_code(error: CloisterError) -> int:
    """2 when the command was given something wrong, as shells expect; 1 when it was right and still failed."""
    return USAGE_EXIT if isinstance(error, SetupError | InvalidRequest) else FAILURE_EXIT


class FriendlyGroup(TyperGroup):
    """Runs commands; turns every CloisterError into one or two lines and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command asked for."""
        try:
            return super().invoke(ctx)
        except CloisterError as error:
            typer.secho(f"Error: {error.message}", fg="red", err=True)
            if error.hint:
                typer.echo(error.hint, err=True)
            raise typer.Exit(exit_code(error)) from None


DEFAULT_URL = "http://127.0.0.1:8000"

Url = Annotated[str, typer.Option(help="Where the server listens; `/v1` may be left out.", show_default=DEFAULT_URL)]
ApiKey = Annotated[
    str,
    typer.Option(
        envvar="CLOISTER_API_KEY",
        help="API key. Better in the environment: other users of this machine can see a process's arguments.",
        show_default="the development key",
    ),
]
DEFAULT_KEY = DEVELOPMENT_KEY


def numbers(text: str) -> list[int]:
    """What --users says."""
    try:
        counts = [int(each) for each in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise SetupError("--users takes numbers from 1, with commas between them.", hint="Like: --users 1,8,32")
    return counts
