from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cloister.levels import PARTITIONED
from cloister_bench.gpu.plan import DEFAULT_PROCESSES
from cloister_bench.gpu.results import PHASES, bar_name, timed_steps
from cloister_bench.gpu.shapes import LLAMA_3_8B
from cloister_bench.suite.documents import Document, Drawing, Row, legend_beside, lines, stacked_bars

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BAR = 0.2


def _setting(row: Row) -> str:
    count, users = row["processes"], row["users"]
    if count == min(users, DEFAULT_PROCESSES):
        return "eight attention processes"
    return "one attention process" if count == 1 else "one for each user"


def draw_steps(rows: list[Row], axes: tuple[Axes, ...]) -> str:
    for panel, prompt in zip(axes, (64, 2048), strict=True):
        mine = [{**row, "name": _setting(row)} for row in rows if row["prompt"] == prompt]
        lines(panel, mine, "users", "ratio", "name", {})
        panel.axhline(1.05 if prompt == 64 else 1.08, color="grey", linestyle="--", linewidth=1)
        panel.set_xscale("log", base=2)
        counts = sorted({row["users"] for row in mine})
        panel.set_xticks(counts, [str(count) for count in counts])
        panel.set(title=f"prompts of {prompt:,}", xlabel="users at once", ylabel="partitioned over open")
        if mine:
            panel.legend(fontsize="small")
    return "a decode step (dashed: target)"


def draw_shapes(rows: list[Row], axes: tuple[Axes, ...]) -> str:
    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    counts = sorted({row["users"] for row in rows})
    for at, users in enumerate(counts):
        mine = [row for row in rows if row["users"] == users]
        places = [shapes.index(row["shape"]) + (at - (len(counts) - 1) / 2) * BAR for row in mine]
        axes[0].bar(places, [row["ratio"] for row in mine], BAR, label=f"{users} users")
    axes[0].set_xticks(range(len(shapes)), shapes, fontsize="small")
    axes[0].set(ylabel="partitioned over open", ylim=(0.8, None))
    axes[0].legend(fontsize="small")
    return f"a decode step, prompts of 64, {DEFAULT_PROCESSES} attention processes"


def draw_requests(rows: list[Row], axes: tuple[Axes, ...]) -> str:
    names = [f"{bar_name(row)}, {row['prompt']}/{row['answer']}" for row in rows]
    axes[0].barh(names, [row["tokens_per_s"] for row in rows])
    axes[0].invert_yaxis()
    axes[0].set(xlabel="output tokens/s")
    return "whole requests, without HTTP"


def draw_breakdown(rows: list[Row], axes: tuple[Axes, ...]) -> str:
    parts = {name.replace("_", " "): [row["phases_ms"][name] for row in rows] for name in PHASES}
    stacked_bars(axes[0], [bar_name(row) for row in rows], parts)
    axes[0].set(xlabel="ms in a step")
    legend_beside(axes[0])
    return "where a step's time goes"


def _main(document: Document, part: str) -> list[Row]:
    return [row for row in document[part] if row["shape"] == LLAMA_3_8B]


def _steps(document: Document) -> list[Row]:
    return [row for row in timed_steps(document) if row["shape"] == LLAMA_3_8B and row["design"] == PARTITIONED]


def _shapes(document: Document) -> list[Row]:
    """At the default setting; nothing if there is one shape alone."""
    found = [
        row
        for row in timed_steps(document)
        if row["design"] == PARTITIONED
        and row["prompt"] == 64
        and row["processes"] == min(row["users"], DEFAULT_PROCESSES)
    ]
    return found if len({row["shape"] for row in found}) > 1 else []


def _requests(document: Document) -> list[Row]:
    return [*_main(document, "requests"), *_main(document, "transformers")]


_figure = partial(Drawing, panel=(5.0, 3.2), margin=(2.5, 0.8))
FIGURES = {
    "gpu-steps": _figure(_steps, draw_steps, grid=(1, 2)),
    "gpu-shapes": _figure(_shapes, draw_shapes),
    "gpu-requests": _figure(_requests, draw_requests),
    "gpu-breakdown": _figure(lambda document: document["breakdown"], draw_breakdown),
}
