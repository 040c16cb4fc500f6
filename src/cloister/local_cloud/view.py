"""How the nodes of a cloud on one machine are shown: a table that changes, lines, or JSON lines."""

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from cloister.local_cloud.nodes import LocalNode, State

_COLOURS = {State.READY: "green", State.DOWN: "red", State.AWAY: "red"}
_COLUMNS = ("node", "address", "state", "running", "answered", "restarts")


class View:
    """A table on a terminal, else a line when a node's state changes; with `as_json` when anything does."""

    def __init__(self, stack: ExitStack, *, as_json: bool) -> None:
        self._as_json, self._shown = as_json, dict[str, tuple[Any, ...]]()
        self._live: Live | None = None
        if not as_json and sys.stdout.isatty():
            self._live = stack.enter_context(Live(console=Console(), auto_refresh=False))

    def say(self, line: str) -> None:
        typer.echo(line, err=self._as_json)

    def show(self, nodes: Sequence[LocalNode]) -> None:
        changed = [node for node in nodes if self._shown.get(node.name) != self._seen(node)]
        self._shown |= {node.name: self._seen(node) for node in changed}
        if self._live is not None and changed:
            self._live.update(table(nodes), refresh=True)
        elif self._live is None:
            for node in changed:
                row = dict(zip(_COLUMNS, row_of(node), strict=True))
                typer.echo(json.dumps(row) if self._as_json else _line(row))

    def _seen(self, node: LocalNode) -> tuple[Any, ...]:
        every = self._as_json or self._live is not None
        return row_of(node) if every else (node.state, node.restarts)


def row_of(node: LocalNode) -> tuple[str | int, ...]:
    return node.name, node.url, str(node.state), node.running, node.answered, max(0, node.restarts)


def table(nodes: Sequence[LocalNode]) -> Table:
    made = Table(box=None, pad_edge=False, header_style="dim")
    for title in _COLUMNS:
        made.add_column(title, justify="right" if title in _COLUMNS[3:] else "left")
    for node in nodes:
        made.add_row(*map(str, row_of(node)), style=_COLOURS.get(node.state, "yellow"))
    return made


def _line(row: dict[str, Any]) -> str:
    return f"{row['node']:7} {row['address']} {row['state']}, {row['answered']} answered, {row['restarts']} restarts"
