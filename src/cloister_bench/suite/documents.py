"""What a suite measured, as one JSON document with its targets met or missed, as Markdown tables and as PNG figures."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import nan, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from cloister.files import needed

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Document = dict[str, Any]
Row = dict[str, Any]
Cell = Callable[[Row], Any]


@dataclass(frozen=True, slots=True)
class Target:
    """Without a `target` the number is only reported."""

    name: str
    target: float | None
    measured: Callable[[Document], float | None]
    bound: Literal["at least", "at most"] = "at least"

    def verdict(self, document: Document) -> Row:
        """What was not measured counts as not met."""
        value, met = self.measured(document), None
        if self.target is not None:
            met = value is not None and (value >= self.target if self.bound == "at least" else value <= self.target)
        return {"name": self.name, "bound": self.bound, "target": self.target, "measured": value, "met": met}


@dataclass
class Results:
    """Grows as parts end; `document` may be asked for at any time. A suite adds fields for its numbers."""

    plan: Any
    model: str
    failed: list[Row] = field(default_factory=list, kw_only=True)
    seconds: float = field(default=0.0, kw_only=True)
    targets: ClassVar[tuple[Target, ...]] = ()

    def numbers(self) -> Document:
        raise NotImplementedError

    def remarks(self) -> Document:
        return {}

    def document(self) -> Document:
        numbers = self.numbers()
        verdicts = [target.verdict(numbers) for target in self.targets]
        about = {
            "model": self.model,
            "plan": asdict(self.plan),
            "failed": list(self.failed),
            "seconds": round(self.seconds, 1),
        }
        return {**numbers, "targets": verdicts, **about, **self.remarks()}


def find(rows: Iterable[Row], **having: Any) -> Row | None:
    return next((row for row in rows if having.items() <= row.items()), None)


def value_of(part: str, key: str, **having: Any) -> Callable[[Document], float | None]:
    """A target's number: `key` of the first row of a part that has these values, or of a part that is one row."""

    def measured(document: Document) -> float | None:
        rows = document[part]
        return (find([rows] if isinstance(rows, dict) else rows, **having) or {}).get(key)

    return measured


def write_json(document: Document, path: Path) -> None:
    with needed(f"{path} cannot be written", "Choose another file."):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Table:
    """The first `labels` columns are words, the others numbers."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    labels: int = 1

    @classmethod
    def of(cls, title: str, rows: Iterable[Row], columns: Mapping[str, str | Cell], labels: int = 1) -> "Table":
        """A column for each head: the row's value of this key, or what the function makes of the row."""
        cells = [[shown(row[of] if isinstance(of, str) else of(row)) for of in columns.values()] for row in rows]
        return cls(title, tuple(columns), cells, labels)

    def markdown(self) -> str:
        lines = [self.heads, ["---"] * len(self.heads), *self.rows]
        return f"### {self.title}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def shown(value: Any) -> str:
    return value if isinstance(value, str) else number(value)


def rate_of(hits: float, total: int) -> Row:
    """With its 95% confidence interval; the share is None where nothing was counted."""
    low, high = wilson(hits, total)
    share = round(hits / total, 4) if total else None
    return {"share": share, "low": round(low, 4), "high": round(high, 4), "of": total}


def rate_cell(rate: Row) -> str:
    return "-" if rate["share"] is None else f"{rate['share']:.3f} ({rate['low']:.3f}–{rate['high']:.3f})"


def wilson(hits: float, total: int, z: float = 1.96) -> tuple[float, float]:
    """The 95% confidence interval of a share (Wilson 1927)."""
    if not total:
        return 0.0, 1.0
    share, square = hits / total, z * z
    middle = (share + square / (2 * total)) / (1 + square / total)
    reach = z * sqrt(share * (1 - share) / total + square / (4 * total * total)) / (1 + square / total)
    return max(0.0, middle - reach), min(1.0, middle + reach)


def targets_table(rows: Iterable[Row]) -> Table:
    """What was not measured has no verdict; nor has what has no target."""
    return Table("Targets", ("", "target", "measured", ""), [_target_cells(row) for row in rows])


def _target_cells(row: Row) -> list[str]:
    sign = "≤" if row.get("bound") == "at most" else "≥"
    target = "-" if row["target"] is None else f"{sign} {row['target']:g}"
    known = row["measured"] is not None and row["met"] is not None
    met = "" if not known else "met" if row["met"] else "missed"
    return [row["name"], target, number(row["measured"]), met]


Size = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Drawing:
    rows: Callable[[Document], Any]
    draw: "Callable[[Any, tuple[Axes, ...]], str]"
    grid: tuple[int, int] = (1, 1)
    panel: Size = (4.2, 3.2)
    margin: Size = (2.0, 0.8)


def draw_figures(document: Document, folder: Path, figures: Mapping[str, Drawing]) -> list[Path]:
    written = []
    for name, drawing in figures.items():
        if rows := drawing.rows(document):
            figure, axes = _panels(drawing)
            figure.suptitle(f"{document['model']}: {drawing.draw(rows, axes)}")
            written.append(path := folder / f"{name}.png")
            with needed(f"{path} cannot be written", "Choose another --plot-dir."):
                folder.mkdir(parents=True, exist_ok=True)
                figure.savefig(path, dpi=120)
    return written


def _panels(drawing: Drawing) -> "tuple[Figure, tuple[Axes, ...]]":
    from matplotlib.figure import Figure

    (rows, columns), (width, height) = drawing.grid, drawing.panel
    size = (width * columns + drawing.margin[0], height * rows + drawing.margin[1])
    figure = Figure(figsize=size, layout="constrained")
    return figure, tuple(figure.add_subplot(rows, columns, number + 1) for number in range(rows * columns))


def _lines(panel: "Axes", series: Mapping[str, Mapping[Any, float]], colors: Mapping[str, str]) -> None:
    for name, values in series.items():
        panel.plot(sorted(values), [values[x] for x in sorted(values)], marker="o", color=colors[name], label=name)
    panel.grid(alpha=0.3)


def _bars(
    panel: "Axes", groups: Sequence[str], series: Mapping[str, Mapping[Any, float]], colors: Mapping[str, str]
) -> None:
    width = 0.8 / max(1, len(colors))
    for index, name in enumerate(colors):
        places = [place + (index - (len(colors) - 1) / 2) * width for place in range(len(groups))]
        heights = [series.get(name, {}).get(group, nan) for group in groups]
        panel.bar(places, heights, width, color=colors[name], label=name)
    panel.set_xticks(range(len(groups)), groups, fontsize="small")
    panel.grid(alpha=0.3, axis="y")


@dataclass(frozen=True, slots=True)
class Panel:
    """`y` over `x` of the rows that have the values `where`: a line or bars for each value of `by`. `limit`: a dashed
    line. `log`: both axes, or that of x alone."""

    x: str
    y: str
    by: str
    title: str = ""
    kind: Literal["lines", "bars"] = "lines"
    where: Mapping[str, Any] = field(default_factory=dict)
    limit: float | None = None
    log: Literal["", "x", "xy"] = ""
    labels: Mapping[str, str] = field(default_factory=dict)  # xlabel and ylabel

    def draw(self, panel: "Axes", rows: Sequence[Row]) -> None:
        """Equal names have equal colours in all panels that are drawn of the same rows."""
        colors = {name: f"C{number}" for number, name in enumerate(dict.fromkeys(row[self.by] for row in rows))}
        mine = [row for row in rows if self.where.items() <= row.items() and row[self.y] is not None]
        groups = sorted({row[self.x] for row in mine}) if self.log else list(dict.fromkeys(row[self.x] for row in mine))
        series: dict[str, dict[Any, float]] = {}
        for row in mine:
            series.setdefault(row[self.by], {})[row[self.x]] = row[self.y]
        if self.kind == "lines":
            _lines(panel, series, colors)
        else:
            _bars(panel, groups, series, colors)
        if self.limit is not None:
            panel.axhline(self.limit, color="grey", linestyle="--", linewidth=1)
        if self.log:
            panel.set(xscale="log", yscale="log" if self.log == "xy" else "linear")
            panel.set_xticks(groups, [str(group) for group in groups])
            panel.minorticks_off()
        panel.set(title=self.title, **self.labels)


def charts(
    rows: Callable[[Document], list[Row]],
    title: str,
    *shown: Panel,
    grid: tuple[int, int] = (1, 1),
    panel: Size = (5.0, 3.2),
) -> Drawing:
    """With one legend for all panels. The title may name values of the first row."""

    def draw(found: list[Row], axes: "tuple[Axes, ...]") -> str:
        named: dict[str, Artist] = {}
        for axis, each in zip(axes, shown, strict=True):
            each.draw(axis, found)
            handles, labels = axis.get_legend_handles_labels()
            named |= dict(zip(labels, handles, strict=True))
        axes[0].figure.legend(list(named.values()), list(named), loc="outside right upper", fontsize="small")
        return title.format_map(found[0])

    return Drawing(rows, draw, grid, panel, margin=(2.5, 0.8))
