"""`cloister audit`: which promises hold at a running node, each by an attempt to break it."""

import json
import os
from collections import Counter
from typing import TYPE_CHECKING

import typer

from cloister.cli.options import FAILURE_EXIT, INCOMPLETE_EXIT, NodePolicy, node_url, plain, settings_command
from cloister.config import DEVELOPMENT_KEY, option
from cloister.errors import ServiceUnavailable, SetupError

if TYPE_CHECKING:
    from cloister.audit.ledger import Audited
    from cloister.audit.target import Target

KEY, OTHER_KEY = "CLOISTER_API_KEY", "CLOISTER_OTHER_API_KEY"
UNREACHABLE = 2
_COLOURS = {"PASS": "green", "FAIL": "red", "OFF": "dim", "NOT TRIED": "yellow"}


class AuditOptions(NodePolicy):
    url: str = node_url()
    pid: int | None = option(
        None, "The node's controller, if several nodes run on this machine.", ge=1, show_default="the one that is here"
    )
    as_json: bool = option(False, "Print the whole matrix as JSON.", name="json")


@settings_command(AuditOptions)
def audit(options: AuditOptions) -> None:
    """Try to break each promise of a running node, and say which hold.

    A row is an optimisation of serving or a requirement, and what an attempt found: PASS, FAIL, OFF (the node does not
    do it) or NOT TRIED, which is no pass. CLOISTER_API_KEY and CLOISTER_OTHER_API_KEY are keys of two tenants. As root
    on the node's machine, its processes are tried, too; while their memory is searched the node stands still.

    Exit code: 0 all was tried and nothing failed, 1 something failed, 3 something was not tried, 2 no answer.

    Examples:
      cloister audit http://127.0.0.1:8000 --allow-software-tee
      CLOISTER_API_KEY=… CLOISTER_OTHER_API_KEY=… cloister audit https://node.example --policy policy.toml
      cloister audit https://node.example --policy policy.toml --json
    """
    from rich.progress import Progress

    from cloister.addresses import HttpAddress
    from cloister.audit.ledger import LEDGER
    from cloister.audit.ledger import audit as attempts
    from cloister.audit.target import Target
    from cloister.terminal import error_console

    key, other = os.environ.get(KEY) or DEVELOPMENT_KEY, os.environ.get(OTHER_KEY, "")
    target = Target(HttpAddress.parse(options.url), key, options.load(), other)
    target.pid = _controller(options, target)
    rows = []
    try:
        assert target.model, "asked before all attempts"
        with Progress(console=error_console(), transient=True) as progress:
            task = progress.add_task("Trying…", total=len(LEDGER))
            for row in attempts(target):
                rows.append(row)
                progress.update(task, advance=1, description=f"Tried: {row.row.name}")
    except ServiceUnavailable as gone:  # later, an attempt without an answer is one that was not tried
        typer.secho(f"Error: {gone}", fg="red", err=True)
        raise typer.Exit(UNREACHABLE) from None
    finally:
        target.close()
    counts = Counter(str(row.finding.outcome) for row in rows)
    if options.as_json:
        shown = {"url": str(target.address), "counts": dict(counts), "rows": [row.as_json() for row in rows]}
        typer.echo(json.dumps(shown, indent=2))
    else:
        _print(rows)
        typer.echo(", ".join(f"{counts[name]} {name}" for name in _COLOURS if counts[name]))
    raise typer.Exit(FAILURE_EXIT if counts["FAIL"] else INCOMPLETE_EXIT if counts["NOT TRIED"] else 0)


def _controller(options: AuditOptions, target: "Target") -> int | None:
    from cloister.audit.target import find_controllers

    if not target.is_here or os.geteuid() != 0:
        return None
    found = find_controllers()
    if options.pid is not None and options.pid not in found:
        raise SetupError("That process is no node's controller.", hint=f"Controllers here: {found or 'none'}.")
    return options.pid or (found[0] if len(found) == 1 else None)


def _print(rows: list["Audited"]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("promise or optimisation", "endangers", "outcome", "found"):
        table.add_column(title, overflow="fold")
    for row in rows:
        outcome = str(row.finding.outcome)
        cells = (row.row.name, row.row.endangers, outcome, plain(row.finding.reason))
        table.add_row(*(Text(cell, style=_COLOURS[outcome] if cell == outcome else "") for cell in cells))
    Console().print(table)
