"""The paper's figures, drawn from a measurement's document. Knows numbers and labels only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloister.bench.suite.documents import Document, Draw, Row, panels, stacked_bars, titled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {
    "none": "black",
    "full_naive": "tab:gray",
    "full": "tab:blue",
    "full_lean": "tab:cyan",
    "longcache": "tab:pink",
    "infllm": "tab:olive",
    "h2o": "tab:purple",
    "snapkv": "tab:green",
    "tova": "tab:brown",
    "streaming": "limegreen",
    "mpcache_paper": "tab:orange",
    "mpcache": "tab:red",
}
MEASURES = {
    "megabytes": "megabytes a token",
    "messages": "messages a token",
    "lan_cpu_seconds": "seconds a token, LAN (processor s)",
    "wan_seconds": "seconds a token, WAN",
}


def draw_lengths(document: Document) -> Figure | None:
    """Figure 10: what a token costs against the length of its sequence."""
    runs = [run for run in document["runs"] if run["protocol"] == "aby3"]
    if not runs:
        return None
    figure, axes = panels(2, 2)
    for panel, (key, title) in zip(axes, MEASURES.items(), strict=True):
        for method in dict.fromkeys(run["method"] for run in runs):
            mine = sorted((run["seq"], run[key]) for run in runs if run["method"] == method)
            wide = 2.5 if method.startswith("mpcache") else 1.2
            panel.plot(*zip(*mine, strict=True), marker="o", lw=wide, color=COLORS.get(method), label=method)
        lengths = sorted({run["seq"] for run in runs})
        panel.set(xscale="log", yscale="log", title=title, xlabel="tokens in the sequence")
        panel.set_xticks(lengths, [str(length) for length in lengths])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    axes[1].legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return titled(figure, document, "a token's cost, 3 parties")


def draw_ablation(document: Document) -> Figure | None:
    """Figure 11: step by step."""
    rows = document["ablation"]
    if not rows:
        return None
    figure, axes = panels(1, 3)
    names = [row["step"] for row in rows]
    for panel, key in zip(axes, ("megabytes", "messages", "lan_cpu_seconds"), strict=True):
        _bars_across(panel, names, [row[key] for row in rows], MEASURES[key])
    for panel in axes[1:]:
        panel.set_yticklabels([])
    return titled(figure, document, f"step by step, T = {rows[0]['seq']}")


def draw_sharing(document: Document) -> Figure | None:
    """Figure 12: how many adjacent layers share one selection."""
    rows = document["shared_layers"]
    if not rows:
        return None
    figure, axes = panels(1, 3)
    for panel, key in zip(axes, ("megabytes", "messages", "lan_cpu_seconds"), strict=True):
        for method in dict.fromkeys(row["method"] for row in rows):
            mine = [(row["layers"], row[key]) for row in rows if row["method"] == method]
            panel.plot(*zip(*mine, strict=True), marker="o", color=COLORS.get(method), label=method)
        panel.set(title=MEASURES[key], xlabel="layers with one selection", ylim=(0, None))
        panel.grid(alpha=0.3)
    axes[0].legend()
    return titled(figure, document, "index sharing between layers")


def draw_two_party(document: Document) -> Figure | None:
    """Figure 18: two parties."""
    rows = [run for run in document["runs"] if run["protocol"] == "cheetah"]
    if not rows:
        return None
    figure, axes = panels(1, 2)
    names = [row["method"] for row in rows]
    for panel, key in zip(axes, ("megabytes", "lan_cpu_seconds"), strict=True):
        _bars_across(panel, names, [row[key] for row in rows], MEASURES[key])
    return titled(figure, document, f"2 parties (Cheetah), T = {rows[0]['seq']}")


def draw_operators(document: Document) -> Figure | None:
    """Where a layer's cost goes, operator by operator."""
    rows = [row for row in document["operators"] if row["program"] == "step"]
    if not rows:
        return None
    figure, axes = panels(1, 2)
    methods = list(dict.fromkeys(row["method"] for row in rows))
    for panel, key in zip(axes, ("megabytes", "messages"), strict=True):
        _stacked(panel, rows, methods, key)
    axes[1].legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return titled(figure, document, f"a token's operators, T = {rows[0]['seq']}")


FIGURES: dict[str, Draw] = {
    "mpc-lengths": draw_lengths,
    "mpc-ablation": draw_ablation,
    "mpc-sharing": draw_sharing,
    "mpc-two-party": draw_two_party,
    "mpc-operators": draw_operators,
}


def _bars_across(panel: Axes, names: list[str], values: list[float], title: str) -> None:
    places = range(len(names), 0, -1)
    panel.barh(list(places), values)
    panel.set_yticks(list(places), names, fontsize="small")
    for place, value in zip(places, values, strict=True):
        panel.annotate(
            f" {value:,.0f}" if value >= 100 else f" {value:.3g}", (value, place), va="center", fontsize="x-small"
        )
    panel.set(title=title, xscale="log")
    panel.grid(alpha=0.3, axis="x")


def _stacked(panel: Axes, rows: list[Row], methods: list[str], key: str) -> None:
    operators = dict.fromkeys(row["operator"] for row in rows)
    found = {(row["operator"], row["method"]): row[key] for row in rows}
    parts = {operator: [found.get((operator, method), 0.0) for method in methods] for operator in operators}
    stacked_bars(panel, methods, parts)
    panel.set(title=MEASURES[key])
    panel.grid(alpha=0.3, axis="x")
