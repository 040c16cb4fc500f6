"""Client × feature × level: every cell is one run of a real client against a running server."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from cloister.errors import CloisterError
from cloister_bench.clients.client import FEATURES, Client, attempt
from cloister_bench.connection import on_free_port
from cloister_bench.servers import Server, ServerProcess
from cloister_bench.suite.documents import Document, Drawing, Results, Row, Table, Target

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from cloister_bench.cli.suite import Bars

WORKS = "works"


@dataclass(frozen=True)
class Plan:
    clients: tuple[str, ...]
    levels: tuple[str, ...]
    features: tuple[str, ...] = FEATURES


def _share(document: Document) -> float | None:
    """Of the cells that a client can have at all."""
    cells = document["cells"]
    return sum(cell["came_to"] == WORKS for cell in cells) / len(cells) if cells else None


@dataclass
class Cells(Results):
    cells: list[Row] = field(default_factory=list)
    targets = (Target("cells that work", 1.0, _share),)

    def numbers(self) -> Document:
        return {"cells": self.cells}


class Trial:
    def __init__(self, results: Cells, bars: "Bars", save: Callable[[], None]) -> None:
        self._results, self._bars, self._save = results, bars, save

    def run(self, server: Server, clients: tuple[Client, ...], folder: Path) -> None:
        begun, plan = perf_counter(), self._results.plan
        self._bars.begin("clients", len(clients) * len(plan.levels))
        for client in clients:
            self._bars.say(f"{client.name}: installing")
            try:
                command = client.install(folder)
                with self._reached(client, server, folder) as url:
                    self._try(client, command, server, url)
            except CloisterError as reason:
                self._results.failed.append({"part": client.name, "reason": str(reason)})
            self._results.seconds = perf_counter() - begun
            self._save()

    def _try(self, client: Client, command: list[str], server: Server, url: str) -> None:
        for level in self._results.plan.levels:
            given = {"CLIENT_URL": url, "CLIENT_KEY": server.api_key or "-", "CLIENT_MODEL": server.model}
            given |= {"CLIENT_LEVEL": level, "CLIENT_CLASS": "cloister" if client.is_ours else "openai"}
            self._bars.advance(f"{client.name}, {level}")
            for feature, came_to in attempt(command, self._results.plan.features, given).items():
                cell = {"client": client.name, "level": level, "feature": feature, "came_to": came_to}
                self._results.cells.append(cell)
            self._save()

    @contextmanager
    def _reached(self, client: Client, server: Server, folder: Path) -> Iterator[str]:
        """The address that the client talks to."""
        if not client.proxied:
            yield f"{server.address}/v1"
            return
        address = on_free_port()
        options = ("--port", str(address.port), "--allow-software-tee")
        command = [sys.executable, "-m", "cloister", "proxy", str(server.address), *options]
        with ServerProcess("cloister proxy", command, address, folder / "proxy.log", server.api_key) as proxy:
            proxy.wait()
            yield f"{address}/v1"


def tables(document: Document) -> list[Table]:
    """One row for each client and feature; of what does not work, the reasons follow."""
    levels, features = document["plan"]["levels"], document["plan"]["features"]
    rows, reasons = [], []
    for client in document["plan"]["clients"]:
        for feature in features:
            found = {each["level"]: each["came_to"] for each in _of(document, client=client, feature=feature)}
            if found:
                rows.append((client, feature, *(_sign(found.get(level)) for level in levels)))
            reasons += [(client, feature, level, why) for level, why in found.items() if why != WORKS]
    return [
        Table("What works", ("client", "feature", *levels), tuple(rows), labels=2),
        Table("Why not", ("client", "feature", "level", "reason"), tuple(reasons), labels=4),
    ]


def page(document: Document) -> str:
    """The table in few words. A mark: at every level that was tried; else the levels at which it does not work."""
    levels, features = document["plan"]["levels"], document["plan"]["features"]
    rows = [("client", *features), ("-",) * (len(features) + 1)]
    for client in document["plan"]["clients"]:
        found = [_of(document, client=client, feature=feature) for feature in features]
        rows.append((client, *map(_mark, found)))
    table = "\n".join(f"|{'|'.join(row)}|" for row in rows)
    marks = f"✓: works at {', '.join(levels)} (a README not at obfuscated); –: the client has no such call."
    return f"# Real clients\n\nMade by `cloister bench clients` with {document['model']}. {marks}\n\n{table}\n"


def _mark(cells: list[Row]) -> str:
    broken = ",".join(cell["level"] for cell in cells if cell["came_to"] != WORKS)
    return f"✗{broken}" if broken else "✓" if cells else "–"


def _sign(came_to: str | None) -> str:
    return "" if came_to is None else "yes" if came_to == WORKS else "no"


def _of(document: Document, **having: str) -> list[Row]:
    return [cell for cell in document["cells"] if having.items() <= cell.items()]


def _draw(rows: list[Row], axes: "tuple[Axes, ...]") -> str:
    """A square for each cell: a client's rows are features, its columns levels."""
    features = list(dict.fromkeys(row["feature"] for row in rows))
    for panel, client in zip(axes, dict.fromkeys(row["client"] for row in rows), strict=False):
        mine = [row for row in rows if row["client"] == client]
        levels = list(dict.fromkeys(row["level"] for row in mine))
        for row in mine:
            place = (levels.index(row["level"]), features.index(row["feature"]))
            panel.scatter(*place, marker="s", s=120, color="tab:green" if row["came_to"] == WORKS else "tab:red")
        panel.set_title(client, fontsize="small")
        panel.set_xticks(range(len(levels)), levels, rotation=40, ha="right", fontsize="x-small")
        panel.set_yticks(range(len(features)), features, fontsize="x-small")
        panel.set(xlim=(-0.7, len(levels) - 0.3), ylim=(len(features) - 0.3, -0.7))
    return "what works (green) and does not (red)"


FIGURES = {"clients": Drawing(lambda document: document["cells"], _draw, grid=(2, 5), panel=(2.2, 2.4))}
