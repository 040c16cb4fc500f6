"""What the benches' commands show while they measure and afterwards: bars, and tables of numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table


class Bars:
    """A bar for each part, drawn once a second: drawing must not take the cores from what is measured."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._part = ""

    def begin(self, part: str, total: int) -> None:
        self._part = part
        self._task = self._progress.add_task(part, total=total)

    def advance(self, what: str) -> None:
        self._progress.update(self._task, advance=1, description=f"{self._part}: {what}")

    def say(self, what: str) -> None:
        """Where a long step of a part is."""
        self._progress.update(self._task, description=f"{self._part}: {what}")


def progress_bars() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=1)


def number_table(title: str, columns: tuple[str, ...], labels: int = 1) -> Table:
    """The first `labels` columns are words, the others numbers."""
    from rich.table import Table

    table = Table(title=title)
    for number, column in enumerate(columns):
        is_number = number >= labels
        table.add_column(column, justify="right" if is_number else "left", no_wrap=is_number)
    return table
