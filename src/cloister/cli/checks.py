"""A verdict's checks as a table for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
