"""What every suite's command does: bars, tables, JSON and plots of a measurement."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer
from pydantic import BaseModel

from cloister.config import option
from cloister.errors import ServiceUnavailable, SetupError

if TYPE_CHECKING:
    from rich.progress import Progress

    from cloister_bench.suite.documents import Document, Drawing, Results, Table

    Tables = Callable[[Document], Sequence[Table]]

PRINTED = Path("-")
Known = TypeVar("Known", bound=str)


class Output(BaseModel):
    json_file: Path | None = option(
        None, 'Write the numbers here, part by part; "-" prints them.', name="json", metavar="FILE"
    )
    plot_dir: Path | None = option(None, "Draw the figures here, one PNG for each.", metavar="DIR")


class Bars:
    """A bar for each part, drawn once a second: drawing must not take the cores from what is measured."""

    def __init__(self, progress: "Progress") -> None:
        self._progress = progress
        self._part = ""

    def begin(self, part: str, total: int) -> None:
        self._part = part
        self._task = self._progress.add_task(part, total=total)

    def advance(self, what: str) -> None:
        self._progress.update(self._task, advance=1, description=f"{self._part}: {what}")

    def say(self, what: str) -> None:
        self._progress.update(self._task, description=f"{self._part}: {what}")


def progress_bars() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=1)


def numbers(text: str) -> list[int]:
    try:
        counts = [int(each) for each in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise SetupError("--users takes numbers from 1, with commas between them.", hint="Like: --users 1,8,32")
    return counts


def known_names(text: str, what: str, names: Sequence[Known]) -> tuple[Known, ...]:
    """SetupError where one does not exist."""
    chosen = tuple(each.strip() for each in text.split(","))
    if unknown := set(chosen) - set(names):
        raise SetupError(f"There is no {what} {sorted(unknown)[0]!r}.", hint=f"There are: {', '.join(names)}.")
    return tuple(name for each in chosen for name in names if name == each)


def measure_suite(
    results: "Results",
    measure: Callable[[Bars, Callable[[], None]], None],
    output: Output,
    tables: "Tables",
    figures: "Mapping[str, Drawing]",
) -> "Document":
    """Saves part by part. Returns the document, complete or not."""
    from cloister_bench.suite.documents import draw_figures, write_json

    def save() -> None:
        if output.json_file and output.json_file != PRINTED:
            write_json(results.document(), output.json_file)

    save()  # a file that cannot be written should not cost a whole measurement
    with progress_bars() as progress:
        measure(Bars(progress), save)
    document = results.document()
    if output.json_file == PRINTED:
        typer.echo(json.dumps(document, indent=2))
    else:
        show_tables(tables(document))
    if output.plot_dir:
        draw_figures(document, output.plot_dir, figures)
    return document


def raise_if_failed(results: "Results", what: str = "Not all was measured") -> None:
    if results.failed:
        reasons = "; ".join(f"{one['part']}: {one['reason']}" for one in results.failed)
        raise ServiceUnavailable(f"{what} ({reasons}).", hint="What was measured is kept.")


def show_tables(tables: "Sequence[Table]") -> None:
    from rich import table as rich_table
    from rich.console import Console

    colours = {"met": "[green]met[/]", "missed": "[red]missed[/]"}
    for table in tables:
        shown = rich_table.Table(title=table.title)
        for place, head in enumerate(table.heads):
            is_number = place >= table.labels
            short = max((len(row[place]) for row in table.rows), default=0) < 24  # what wraps may shrink to nothing
            shown.add_column(head, justify="right" if is_number else "left", no_wrap=is_number or short)
        for row in table.rows:
            shown.add_row(*(colours.get(cell, cell) for cell in row))
        if table.rows:
            Console().print(shown)
