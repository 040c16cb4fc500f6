"""How the command line reports an error: what went wrong, what to do next, no traceback for what we foresaw."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

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
