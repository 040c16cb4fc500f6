"""Draws reports. Knows numbers and labels only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cloister.bench.report import Percentiles, RunReport
from cloister.bench.suite.figures import panels, save_figure

PANELS = ("output tokens/s", "first token, ms (p50, shaded to p95)", "between tokens, ms (p50, shaded to p95)")


def plot_runs(series: Mapping[str, list[RunReport]], path: Path, title: str) -> None:
    """One line for each server: throughput, TTFT and inter-token latency (p50, with a band up to p95) over users."""
    figure, (rate, *latency) = panels(1, 3, panel=(4.0, 3.0), margin=(0.0, 0.8))
    for name, runs in series.items():
        users = [run.users for run in runs]
        (line,) = rate.plot(users, [run.output_tokens_per_s for run in runs], marker="o", label=name)
        for panel, latencies in zip(latency, ([r.ttft_ms for r in runs], [r.itl_ms for r in runs]), strict=True):
            middle, upper = _band(latencies)
            panel.plot(users, middle, marker="o", color=line.get_color(), label=name)
            panel.fill_between(users, middle, upper, color=line.get_color(), alpha=0.15)
    for panel, label in zip((rate, *latency), PANELS, strict=True):
        panel.set(xlabel="users at once", title=label, ylim=(0, None))
        panel.grid(alpha=0.3)
    rate.legend()
    figure.suptitle(title)
    save_figure(figure, path, hint="Use a file name ending in .png.")


def _band(latencies: list[Percentiles]) -> tuple[list[float], list[float]]:
    missing = float("nan")
    middle = [missing if each.p50 is None else each.p50 for each in latencies]
    return middle, [missing if each.p95 is None else each.p95 for each in latencies]
