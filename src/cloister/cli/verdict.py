"""A verdict on a terminal: its checks as a table or as lines, and the exit code that says how it went."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from cloister.checks import Verdict

_COLOURS = {"PASS": "green", "FAIL": "red", "SKIP": "yellow"}


def checks_table(verdict: Verdict) -> Table:
    """One line for each check; what was skipped because nobody asked for it is dim and says so."""
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
        table.add_row(Text(plain(check.name)), Text(outcome, style=style), Text(plain(found)))
    return table


def plain(text: str) -> str:
    """Evidence had a hand in it, and a terminal obeys escape sequences."""
    return "".join(each for each in " ".join(text.split()) if each.isprintable())


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
