"""What all commands share: common options, how a verdict is shown, and how an error is reported (without traceback)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from cloister.errors import CloisterError, InvalidRequest, SetupError

if TYPE_CHECKING:
    from rich.table import Table

    from cloister.checks import Verdict

USAGE_EXIT = 2
FAILURE_EXIT = 1
INTERRUPTED_EXIT = 130


def exit_code(error: CloisterError) -> int:
    """2 for wrong use, as shells expect; 1 for a failure."""
    return USAGE_EXIT if isinstance(error, SetupError | InvalidRequest) else FAILURE_EXIT


def print_error(error: CloisterError) -> None:
    typer.secho(f"Error: {error.message}", fg="red", err=True)
    if error.hint:
        typer.echo(error.hint, err=True)


class FriendlyGroup(TyperGroup):
    """Runs commands; turns every CloisterError into one or two lines and an exit code, and Ctrl-C into one word."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except CloisterError as error:
            print_error(error)
            raise typer.Exit(exit_code(error)) from None
        except KeyboardInterrupt:
            typer.echo("Stopped.", err=True)
            raise typer.Exit(INTERRUPTED_EXIT) from None


DEFAULT_URL = "http://127.0.0.1:8000"

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
AsJsonTable = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


_COLOURS = {"PASS": "green", "FAIL": "red", "SKIP": "yellow"}


def checks_table(verdict: Verdict) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("check", "outcome", "found"):
        table.add_column(title, overflow="fold")
    for check in verdict.checks:
        outcome = str(check.outcome)
        unasked = outcome == "SKIP" and not check.required
        found = f"{check.reason} (not asked for)" if unasked else check.reason
        style = "dim" if unasked else _COLOURS[outcome]
        if check.allowed_by:
            found, style = f"{check.reason} (allowed by the policy: {check.allowed_by})", _COLOURS["SKIP"]
        table.add_row(Text(plain(check.name)), Text(outcome, style=style), Text(plain(found)))
    return table


def plain(text: str) -> str:
    """Without escape sequences, which evidence may contain and a terminal would obey."""
    return "".join(each for each in " ".join(text.split()) if each.isprintable())


def without_control_characters(text: str) -> str:
    """A terminal obeys escape sequences, and a model may write any: keep line breaks and tabs only."""
    return "".join(each for each in text if each in "\n\t" or each.isprintable())


def report(verdict: Verdict, *, as_json: bool) -> None:
    """Print a verdict line by line; exit with 1 unless it is a pass."""
    if as_json:
        typer.echo(json.dumps(verdict.as_json(), indent=2))
    else:
        width = max(len(check.name) for check in verdict.checks)
        for check in verdict.checks:
            outcome = typer.style(str(check.outcome), fg=_COLOURS[str(check.outcome)])
            typer.echo(f"{outcome}  {check.name:<{width}}  {plain(check.reason)}")
        for name, value in verdict.claims.items():
            typer.secho(f"{name}: {value}", dim=True, err=True)
    if not verdict.passed:
        raise typer.Exit(1)
