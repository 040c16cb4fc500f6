"""The paper's figures, drawn from a measurement's document. Knows numbers and labels only."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cloister_bench.suite.documents import Document, Drawing, Row, legend_beside, lines, stacked_bars

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = {
    "full_naive": "tab:gray",
    "full": "tab:blue",
    "full_lean": "tab:cyan",
    "longcache": "tab:pink",
    "infllm": "tab:olive",
    "h2o": "tab:purple",
    "snapkv": "tab:green",
    "tova": "tab:brown",
    "streaming": "limegreen",
    "mpcache": "tab:red",
}
MEASURES = {
    "megabytes": "megabytes a token",
    "messages": "messages a token",
    "lan_cpu_seconds": "seconds a token, LAN (processor s)",
    "wan_seconds": "seconds a token, WAN",
}


def draw_lengths(runs: list[Row], axes: tuple[Axes, ...]) -> str:
    lengths = sorted({run["seq"] for run in runs})
    for panel, (key, title) in zip(axes, MEASURES.items(), strict=True):
        lines(panel, runs, "seq", key, "method", COLORS)
        for line in panel.get_lines():
            line.set_linewidth(2.5 if str(line.get_label()).startswith("mpcache") else 1.2)
        panel.set(xscale="log", yscale="log", title=title, xlabel="tokens in the sequence")
        panel.set_xticks(lengths, [str(length) for length in lengths])
        panel.minorticks_off()
    legend_beside(axes[1])
    return "a token's cost, 3 parties"


def draw_operators(rows: list[Row], axes: tuple[Axes, ...]) -> str:
    methods, operators = (list(dict.fromkeys(row[label] for row in rows)) for label in ("method", "operator"))
    for panel, key in zip(axes, ("megabytes", "messages"), strict=True):
        found = {(row["operator"], row["method"]): row[key] for row in rows}
        stacked_bars(
            panel, methods, {name: [found.get((name, method), 0.0) for method in methods] for name in operators}
        )
        panel.set(title=MEASURES[key])
        panel.grid(alpha=0.3, axis="x")
    legend_beside(axes[1])
    return f"a token's operators, T = {rows[0]['seq']}"


def _rows(document: Document, kind: str, **having: str) -> list[Row]:
    return [row for row in document[kind] if having.items() <= row.items()]


FIGURES = {
    "mpc-lengths": Drawing(partial(_rows, kind="runs", protocol="aby3"), draw_lengths, (2, 2)),
    "mpc-operators": Drawing(partial(_rows, kind="operators", program="step"), draw_operators, (1, 2)),
}
