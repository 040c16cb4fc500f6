"""What a run amounts to: throughput and percentiles, as numbers, as stable JSON and as a plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cloister_bench.messages import Answer, Workload
from cloister_bench.suite.documents import panels, save_figure


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Milliseconds; None where nothing was measured."""

    p50: float | None
    p95: float | None
    p99: float | None

    @classmethod
    def of_seconds(cls, samples: Sequence[float]) -> Percentiles:
        import numpy as np

        if not samples:
            return NOTHING
        return cls(*(round(1000 * float(each), 3) for each in np.percentile(samples, (50, 95, 99))))


NOTHING = Percentiles(None, None, None)


@dataclass(frozen=True, slots=True)
class RunReport:
    """The first five fields are the stable part of the JSON. `answer_ms`: from asking to an answer's last token."""

    users: int
    output_tokens_per_s: float
    ttft_ms: Percentiles
    itl_ms: Percentiles
    errors: int
    errors_by_kind: dict[str, int] = field(default_factory=dict)
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    short_answers: int = 0
    chunks: int = 0
    wall_s: float = 0.0
    client_cpu_us_per_chunk: float | None = None
    answer_ms: Percentiles = NOTHING


def summarise(
    users: int, answers: Sequence[Answer], errors: Counter[str], wanted_tokens: int, client_cpu_s: float = 0.0
) -> RunReport:
    """Throughput is every whole answer's tokens over the time from the first request sent to the last token."""
    wall = max((a.last_token for a in answers), default=0.0) - min((a.sent for a in answers), default=0.0)
    tokens = sum(a.output_tokens for a in answers)
    chunks = sum(a.chunks for a in answers)
    return RunReport(
        users=users,
        output_tokens_per_s=round(tokens / wall, 3) if wall > 0 else 0.0,
        ttft_ms=Percentiles.of_seconds([a.first_token - a.sent for a in answers]),
        itl_ms=Percentiles.of_seconds([gap for a in answers for gap in a.gaps]),
        errors=errors.total(),
        errors_by_kind=dict(errors),
        requests=len(answers) + errors.total(),
        prompt_tokens=sum(a.prompt_tokens for a in answers),
        output_tokens=tokens,
        short_answers=sum(a.output_tokens < wanted_tokens for a in answers),
        chunks=chunks,
        wall_s=round(wall, 3),
        client_cpu_us_per_chunk=round(1e6 * client_cpu_s / chunks, 1) if chunks else None,
        answer_ms=Percentiles.of_seconds([a.last_token - a.sent for a in answers]),
    )


def kinds_of_errors(runs: Iterable[RunReport]) -> str:
    totals = sum((Counter(run.errors_by_kind) for run in runs), Counter[str]())
    return ", ".join(f"{count} × {kind}" for kind, count in totals.items())


ASKED = ("endpoint", "input_tokens", "output_tokens", "requests_per_user", "warmup", "seed", "protection")


@dataclass(frozen=True, slots=True)
class BenchReport:
    runs: list[RunReport]
    url: str
    model: str
    load: Workload

    def as_json(self) -> dict[str, Any]:
        about = {"runs": [asdict(run) for run in self.runs], "url": self.url, "model": self.model}
        return about | {name: getattr(self.load, name) for name in ASKED}


PANELS = ("output tokens/s", "first token, ms (p50, shaded to p95)", "between tokens, ms (p50, shaded to p95)")


def plot_runs(series: Mapping[str, list[RunReport]], path: Path, title: str) -> None:
    figure, (rate, *latency) = panels(1, 3, panel=(4.0, 3.0), margin=(0.0, 0.8))
    for name, runs in series.items():
        users = [run.users for run in runs]
        (line,) = rate.plot(users, [run.output_tokens_per_s for run in runs], marker="o", label=name)
        for panel, latencies in zip(latency, ([r.ttft_ms for r in runs], [r.itl_ms for r in runs]), strict=True):
            middle, upper = ([_known(getattr(each, name)) for each in latencies] for name in ("p50", "p95"))
            panel.plot(users, middle, marker="o", color=line.get_color(), label=name)
            panel.fill_between(users, middle, upper, color=line.get_color(), alpha=0.15)
    for panel, label in zip((rate, *latency), PANELS, strict=True):
        panel.set(xlabel="users at once", title=label, ylim=(0, None))
        panel.grid(alpha=0.3)
    rate.legend()
    figure.suptitle(title)
    save_figure(figure, path, hint="Use a file name ending in .png.")


def _known(latency: float | None) -> float:
    return float("nan") if latency is None else latency
