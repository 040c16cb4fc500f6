"""Draws reports. Knows numbers and labels only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cloister.bench.report import Percentiles, RunReport
from cloister.errors import SetupError

PANELS = ("output tokens/s", "first token, ms (p50, shaded to p95)", "between tokens, ms (p50, shaded to p95)")


def plot_runs(series: Mapping[str, list[RunReport]], path: Path, title: str) -> None:
    """One line for each server: throughput, TTFT and inter-token latency (p50, with a band up to p95) over users."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
    for name, runs in series.items():
        users = [run.users for run in runs]
        (line,) = panels[0].plot(users, [run.output_tokens_per_s for run in runs], marker="o", label=name)
        for panel, latencies in zip(panels[1:], ([r.ttft_ms for r in runs], [r.itl_ms for r in runs]), strict=True):
            middle, upper = _band(latencies)
            panel.plot(users, middle, marker="o", color=line.get_color(), label=name)
            panel.fill_between(users, middle, upper, color=line.get_color(), alpha=0.15)
    for panel, label in zip(panels, PANELS, strict=True):
        panel.set(xlabel="users at once", title=label, ylim=(0, None))
        panel.grid(alpha=0.3)
    panels[0].legend()
    figure.suptitle(title)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as wrong:
        raise SetupError(f"The plot cannot be written: {wrong}.", hint="Use a file name ending in .png.") from None
    finally:
        pyplot.close(figure)


def _band(latencies: list[Percentiles]) -> tuple[list[float], list[float]]:
    missing = float("nan")
    middle = [missing if each.p50 is None else each.p50 for each in latencies]
    return middle, [missing if each.p95 is None else each.p95 for each in latencies]
