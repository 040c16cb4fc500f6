"""Figures of a measurement's document, one PNG each. Knows panels and files, no numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from cloister.bench.suite.results import Document
from cloister.errors import SetupError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Draw: TypeAlias = "Callable[[Document], Figure | None]"
Size = tuple[float, float]


def draw_figures(document: Document, folder: Path, figures: Mapping[str, Draw]) -> list[Path]:
    """One PNG for each figure there are numbers for; the files written."""
    drawn = {folder / f"{name}.png": draw(document) for name, draw in figures.items()}
    for path, figure in drawn.items():
        if figure is not None:
            save_figure(figure, path)
    return [path for path, figure in drawn.items() if figure is not None]


def save_figure(figure: Figure, path: Path, hint: str = "Choose another --plot-dir.") -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as wrong:
        raise SetupError(f"{path} cannot be written: {wrong}.", hint=hint) from None


def panels(
    rows: int, columns: int, panel: Size = (4.2, 3.2), margin: Size = (2.0, 0.8)
) -> tuple[Figure, tuple[Axes, ...]]:
    """A figure of so many panels, row by row; sizes in inches."""
    from matplotlib.figure import Figure

    size = (panel[0] * columns + margin[0], panel[1] * rows + margin[1])
    figure = Figure(figsize=size, layout="constrained")
    return figure, tuple(figure.add_subplot(rows, columns, number + 1) for number in range(rows * columns))


def titled(figure: Figure, document: Document, what: str) -> Figure:
    figure.suptitle(f"{document['model']}: {what}")
    return figure


def stacked_bars(panel: Axes, places: list[float] | list[str], parts: Mapping[str, list[float]]) -> None:
    """Bars across, each of the parts after the other."""
    left = [0.0] * len(places)
    for name, widths in parts.items():
        panel.barh(places, widths, left=left, label=name)
        left = [start + width for start, width in zip(left, widths, strict=True)]
