"""The paper's four figures, drawn from a measurement's document. Knows numbers and labels only."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cloister.levels import ISOLATED, OPEN, PARTITIONED
from cloister_bench.spd.plan import LEVELS
from cloister_bench.suite.documents import Document, Drawing, Row, find, legend_beside, lines, stacked_bars

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS: dict[str, str] = {OPEN: "tab:blue", PARTITIONED: "tab:orange", ISOLATED: "tab:green"}
BAR = 0.26
LOAD = ("users", "input_tokens", "output_tokens")


def draw_users(runs: list[Row], axes: tuple[Axes, ...]) -> str:
    """Figure 4: answer times against those of `open`, and throughput, over the number of users."""
    latency, throughput = axes
    answered = [run for run in runs if run["tokens_per_s"]]
    compared = [
        {**run, "ratio": run["answer_ms"] / beside["answer_ms"]}
        for run in answered
        if (beside := find(runs, level=OPEN, **{name: run[name] for name in (*LOAD, "model")}))
        and run["answer_ms"]
        and beside["answer_ms"]
    ]
    lines(latency, compared, "users", "ratio", "level", COLORS)
    lines(throughput, answered, "users", "tokens_per_s", "level", COLORS)
    counts = sorted({run["users"] for run in runs})
    for panel in axes:
        panel.set_xscale("log", base=2)
        panel.set_xticks(counts, [str(count) for count in counts])
        panel.set_xlabel("users at once")
    latency.set_yscale("log", base=2)
    latency.yaxis.set_major_formatter("{x:g}×")
    latency.set_title("time of an answer, over that of open")
    throughput.set(title="output tokens/s", ylim=(0, None))
    latency.legend()
    return f"{runs[0]['input_tokens']} tokens in, {runs[0]['output_tokens']} out"


def draw_models(runs: list[Row], axes: tuple[Axes, ...]) -> str:
    """Figure 5: the time of an answer for models of two sizes."""
    timed = [{**run, "seconds": run["answer_ms"] and run["answer_ms"] / 1000} for run in runs]
    _bars(axes[0], timed, "model", "seconds", "time of an answer, s")
    return "{users} users, {input_tokens} tokens in, {output_tokens} out".format_map(runs[-1])


def draw_lengths(runs: list[Row], axes: tuple[Axes, ...]) -> str:
    """Figure 6: the time for each token of an answer, over the lengths of prompts and answers."""
    named = [{**run, "load": "{input_tokens} in\n{output_tokens} out".format_map(run)} for run in runs]
    _bars(axes[0], named, "load", "per_token_ms", "ms for each token")
    return f"{runs[0]['users']} users"


def draw_breakdown(breakdown: dict[str, Row], axes: tuple[Axes, ...]) -> str:
    """Figure 7: the parts of a step of the service at `partitioned`; beside them what `open` takes for a token."""
    (panel,) = axes
    for row, each in enumerate(breakdown.values()):
        whole = each["between_tokens_ms"][OPEN] or 0.0
        panel.barh(2 * row + 1, whole, color="lightgray", label="between tokens at open" if row == 0 else None)
    phases = [each["phases_ms"] for each in breakdown.values()]
    parts = {name.replace("_", " "): [each[name] for each in phases] for name in phases[0]}
    stacked_bars(panel, [2.0 * row for row in range(len(breakdown))], parts)
    labels = [f"{users} users, {level}" for users in breakdown for level in (PARTITIONED, OPEN)]
    panel.set_yticks(range(len(labels)), labels)
    panel.set(xlabel="ms in a step")
    legend_beside(panel)
    return "where a step's time goes"


def _bars(panel: Axes, runs: list[Row], by: str, key: str, label: str) -> None:
    """A group for each name that `by` has in the runs, with a bar for each level."""
    groups = list(dict.fromkeys(run[by] for run in runs))
    for offset, level in enumerate(LEVELS):
        bars = [(groups.index(run[by]), run[key]) for run in runs if run["level"] == level and run[key] is not None]
        places = [place + (offset - 1) * BAR for place, _ in bars]
        panel.bar(places, [height for _, height in bars], BAR, color=COLORS[level], label=level)
    panel.set_xticks(range(len(groups)), groups)
    panel.grid(alpha=0.3, axis="y")
    panel.set(ylabel=label, ylim=(0, None))
    panel.legend()


def _runs(document: Document, figure: int) -> list[Row]:
    return [run for run in document["runs"] if run["figure"] == figure]


def _both_models(document: Document) -> list[Row]:
    """The larger model's runs, behind those of the other under the same load; nothing without the larger one."""
    larger = _runs(document, 5)
    smaller = _runs(document, 4) if larger else []
    return [run for run in smaller if all(run[name] == larger[0][name] for name in LOAD)] + larger


_figure = partial(Drawing, panel=(5.0, 3.0), margin=(3.0, 0.8))
FIGURES = {
    "spd-users": _figure(partial(_runs, figure=4), draw_users, grid=(1, 2)),
    "spd-models": _figure(_both_models, draw_models),
    "spd-lengths": _figure(partial(_runs, figure=6), draw_lengths),
    "spd-breakdown": _figure(lambda document: document["breakdown"], draw_breakdown),
}
