"""The document of `bench spd`: its targets (what we set ourselves for vaults), tables and the paper's four figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from cloister.levels import ISOLATED, OPEN, PARTITIONED
from cloister_bench.report import RunReport
from cloister_bench.spd.plan import LEVELS, Part, Plan
from cloister_bench.suite import documents
from cloister_bench.suite.documents import (
    Document,
    Drawing,
    Row,
    Table,
    Target,
    find,
    grouped_bars,
    legend_beside,
    lines,
    number,
    stacked_bars,
    targets_table,
    value_of,
)
from cloister_bench.suite.measurement import Measured, Point, ratio

if TYPE_CHECKING:
    from matplotlib.axes import Axes

IDLE_VAULTS = 64


_vaults = partial(value_of, "runs", figure=4, level=PARTITIONED)
TARGETS = (
    Target("throughput of partitioned over open, 8 users", 0.85, _vaults("ratio_to_open", users=8)),
    Target("throughput of partitioned over open, 32 users", 0.8, _vaults("ratio_to_open", users=32)),
    Target("throughput of partitioned over isolated, 8 users", 3.0, _vaults("ratio_to_isolated", users=8)),
    Target("first token of a long prompt, partitioned over open", 1.2, value_of("ttft", "ratio"), "at most"),
    Target("a vault's private memory beyond its KV cache, MB", 40.0, value_of("memory", "beyond_kv_mb"), "at most"),
    Target("a new user's wait for a vault, spare one ready, ms", 50.0, value_of("vaults", "with_spare_ms"), "at most"),
    Target("a new user's wait for a vault, none spare, ms", 50.0, value_of("vaults", "without_spare_ms"), "at most"),
    Target(
        f"{IDLE_VAULTS} idle vaults, MB",
        3000.0,
        value_of("memory", "idle_vaults_mb", idle_vaults=IDLE_VAULTS),
        "at most",
    ),
)


FIGURE_OF: dict[Part, int] = {"users": 4, "model": 5, "lengths": 6}

# The service's phases (compute.base.PHASES) by the paper's names for them (Figure 7).
STEPS = {
    "query": "q_projection",
    "key_value": "kv_projection",
    "output_attention": "output_attention",
    "waiting": "waiting_for_input_attention",
    "merge": "merge",
    "rest": "output_projection_and_mlp",
}
OTHER = "other"


def run_entry(part: Part, model: str, point: Point, measured: Measured) -> dict[str, Any]:
    runs = list(measured.rounds[point].values())
    beside_open = ratio(measured.rounds[point], measured.side(point, OPEN))
    beside_isolated = ratio(measured.rounds[point], measured.side(point, ISOLATED))
    answer = _median(run.answer_ms.p50 for run in runs)
    return {
        **point.labels(),
        "tokens_per_s": _median(run.output_tokens_per_s for run in runs),
        "ttft_ms": _median(run.ttft_ms.p50 for run in runs),
        "ratio_to_open": _rounded(beside_open),
        "model": model,
        "figure": FIGURE_OF[part],
        "ratio_to_isolated": _rounded(beside_isolated),
        "answer_ms": answer,
        "per_token_ms": None if answer is None else round(answer / point.output_tokens, 3),
        "between_tokens_ms": _median(run.itl_ms.p50 for run in runs),
        "rounds": len(runs),
        "requests": sum(run.requests for run in runs),
        "errors": sum(run.errors for run in runs),
    }


def breakdown_entry(
    seconds: Mapping[str, float], steps: float, partitioned: RunReport, unprotected: RunReport
) -> dict[str, Any]:
    """Where a step of the service goes: milliseconds of each phase, and the rest of the step (LM head, sampling)."""
    phases = {name: 1000 * seconds.get(phase, 0.0) / steps if steps else 0.0 for phase, name in STEPS.items()}
    step = 1000 * seconds.get("step", 0.0) / steps if steps else 0.0
    phases[OTHER] = max(step - sum(phases.values()), 0.0)
    return {
        "steps": int(steps),
        "step_ms": round(step, 3),
        "phases_ms": {name: round(each, 4) for name, each in phases.items()},
        "between_tokens_ms": {PARTITIONED: partitioned.itl_ms.p50, OPEN: unprotected.itl_ms.p50},
    }


@dataclass
class Results(documents.Results):
    """`measured` holds the parts that compare levels in rounds, each with the name of its model."""

    plan: Plan
    quick: bool = False
    measured: dict[Part, tuple[str, Measured]] = field(default_factory=dict)
    breakdown: dict[str, Any] = field(default_factory=dict)
    ttft: dict[str, Any] = field(default_factory=dict)
    vaults: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    targets = TARGETS

    def numbers(self) -> dict[str, Any]:
        runs = [
            run_entry(part, model, point, measured)
            for part, (model, measured) in self.measured.items()
            for point in measured.rounds
        ]
        small = {name: dict(getattr(self, name)) for name in ("breakdown", "memory", "ttft", "vaults")}
        return {"runs": runs, **small}

    def remarks(self) -> dict[str, Any]:
        return {"quick": self.quick, "skipped": self._skipped(), "seconds": round(self.seconds, 1)}

    def _skipped(self) -> list[dict[str, Any]]:
        planned = [(part, point, why) for part, point, why in self.plan.left_out() if part in self.measured]
        late = [
            (part, point, "the part's time was used up")
            for part, (_, measured) in self.measured.items()
            for point in measured.left_out
        ]
        return [{"figure": FIGURE_OF[part], **point.labels(), "reason": why} for part, point, why in planned + late]


def _median(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return round(median(known), 3) if known else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


COLUMNS = ("load", "level", "tokens/s", "of open's", "answer, ms", "first token, ms")


def tables(document: Document) -> list[Table]:
    models: dict[str, list[list[str]]] = {}
    for run in document["runs"]:
        load = f"{run['users']} × {run['input_tokens']}/{run['output_tokens']}"  # users × tokens in/tokens out
        numbers = (run[name] for name in ("tokens_per_s", "ratio_to_open", "answer_ms", "ttft_ms"))
        models.setdefault(run["model"], []).append([load, run["level"], *map(number, numbers)])
    runs = [Table(model, COLUMNS, rows) for model, rows in models.items()]
    return [*runs, _breakdown(document), targets_table(document["targets"])]


def _breakdown(document: Document) -> Table:
    breakdown = document["breakdown"]
    names = next(iter(breakdown.values()))["phases_ms"] if breakdown else ()
    rows = [
        [name.replace("_", " "), *(f"{each['phases_ms'][name]:.3f}" for each in breakdown.values())] for name in names
    ]
    rows += [["whole step", *(f"{each['step_ms']:.3f}" for each in breakdown.values())]] if breakdown else []
    return Table("A step of the service at partitioned, ms", ("", *(f"{users} users" for users in breakdown)), rows)


COLORS: dict[str, str] = {OPEN: "tab:blue", PARTITIONED: "tab:orange", ISOLATED: "tab:green"}
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
    groups = list(dict.fromkeys(run[by] for run in runs))
    values: dict[str, list[Any]] = {
        level: [(find(runs, level=level, **{by: name}) or {}).get(key) for name in groups] for level in LEVELS
    }
    grouped_bars(panel, groups, values, colors=COLORS)
    panel.set(ylabel=label, ylim=(0, None))
    panel.legend()


def _runs(document: Document, figure: int) -> list[Row]:
    return [run for run in document["runs"] if run["figure"] == figure]


def _both_models(document: Document) -> list[Row]:
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
