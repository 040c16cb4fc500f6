"""`cloister usage`: what a node's tenants used, by day, tenant and level."""

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, astuple
from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from cloister.cli.options import AsJsonTable, plain
from cloister.config import data_folder
from cloister.errors import InvalidRequest, SetupError
from cloister.usage import FILE, Counts, Place, read_usage

_HEAD = ("day", "tenant", "level", "requests", "refused", "prompt tokens", "completion tokens")
_NAMES = 3  # columns of words


def usage(
    usage: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The node's usage file.", show_default="in the data folder")
    ] = None,
    since: Annotated[str | None, typer.Option(metavar="DAY", help="The first day (UTC): 2026-11-01.")] = None,
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="This tenant alone.")] = None,
    as_json: AsJsonTable = False,
) -> None:
    """Show requests and tokens by day (UTC), tenant and level, as a node counts them.

    A node counts where `cloister serve` has --usage FILE, or where a tenant has a quota. The file has no prompt, no id
    and no time finer than a day; a row goes after 400 days. Calls that anonymous tokens pay for are one row of a day.
    A node writes every 10 seconds and at its end: a killed one forgets what came later, for quotas too.

    Examples:
      cloister usage
      cloister usage --usage /var/lib/cloister/usage.sqlite --since 2026-11-01 --tenant alice --json
    """
    path = usage or data_folder() / FILE
    try:
        first = "" if since is None else date.fromisoformat(since).isoformat()
    except ValueError:
        raise InvalidRequest("--since takes a day.", hint="Like: 2026-11-01") from None
    if not path.exists():
        hint = "Name it with --usage. A node makes one: `cloister serve --usage FILE`."
        raise SetupError(f"There is no usage file {path}.", hint=hint)
    rows = read_usage(path, first, tenant)
    total = Counts()
    for _, counts in rows:
        total += counts
    if as_json:
        found = {"usage": [{**asdict(place), **asdict(counts)} for place, counts in rows], "total": asdict(total)}
        typer.echo(json.dumps(found, indent=2))
        return
    _print([*rows, (Place("total", "", ""), total)])


def _print(rows: Iterable[tuple[Place, Counts]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    for number, name in enumerate(_HEAD):
        table.add_column(name, justify="left" if number < _NAMES else "right", no_wrap=True)
    for place, counts in rows:
        cells = (plain(str(each)) for each in (*astuple(place), *astuple(counts)))
        table.add_row(*map(Text, cells))
    Console(width=None if sys.stdout.isatty() else 200).print(table)
