"""The document of `bench spd`: its targets (what we set ourselves for vaults), tables and the paper's four figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from cloister.levels import ISOLATED, OPEN, PARTITIONED
from cloister_bench.report import RunReport
from cloister_bench.spd.plan import Part, Plan
from cloister_bench.suite import documents
from cloister_bench.suite.documents import Cell, Document, Panel, Row, Table, Target, charts, targets_table, value_of
from cloister_bench.suite.measurement import Measured, Point, summary

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


def run_entry(part: Part, model: str, point: Point, measured: Measured) -> Row:
    row = summary(point, measured, OPEN, ISOLATED)
    each = None if row["answer_ms"] is None else round(row["answer_ms"] / point.output_tokens, 3)
    return {**row, "per_token_ms": each, "model": model, "figure": FIGURE_OF[part]}


def breakdown_entry(seconds: Mapping[str, float], steps: float, partitioned: RunReport, unprotected: RunReport) -> Row:
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
    breakdown: Row = field(default_factory=dict)
    ttft: Row = field(default_factory=dict)
    vaults: Row = field(default_factory=dict)
    memory: Row = field(default_factory=dict)
    targets = TARGETS

    def numbers(self) -> Row:
        runs = [
            run_entry(part, model, point, measured)
            for part, (model, measured) in self.measured.items()
            for point in measured.rounds
        ]
        small = {name: dict(getattr(self, name)) for name in ("breakdown", "memory", "ttft", "vaults")}
        return {"runs": runs, **small}

    def remarks(self) -> Row:
        return {"quick": self.quick, "skipped": self._skipped(), "seconds": round(self.seconds, 1)}

    def _skipped(self) -> list[Row]:
        planned = [(part, point, why) for part, point, why in self.plan.left_out() if part in self.measured]
        late = [
            (part, point, "the part's time was used up")
            for part, (_, measured) in self.measured.items()
            for point in measured.left_out
        ]
        return [{"figure": FIGURE_OF[part], **point.labels(), "reason": why} for part, point, why in planned + late]


COLUMNS: dict[str, str | Cell] = {
    "load": lambda run: (
        f"{run['users']} × {run['input_tokens']}/{run['output_tokens']}"
    ),  # users × tokens in/tokens out
    "level": "level",
    "tokens/s": "tokens_per_s",
    "of open's": "ratio_to_open",
    "answer, ms": "answer_ms",
    "first token, ms": "ttft_ms",
}


def tables(document: Document) -> list[Table]:
    runs = document["runs"]
    models = dict.fromkeys(run["model"] for run in runs)
    each = [Table.of(model, (run for run in runs if run["model"] == model), COLUMNS) for model in models]
    return [*each, _breakdown(document), targets_table(document["targets"])]


def _breakdown(document: Document) -> Table:
    breakdown = document["breakdown"]
    names = next(iter(breakdown.values()))["phases_ms"] if breakdown else ()
    rows = [
        [name.replace("_", " "), *(f"{each['phases_ms'][name]:.3f}" for each in breakdown.values())] for name in names
    ]
    rows += [["whole step", *(f"{each['step_ms']:.3f}" for each in breakdown.values())]] if breakdown else []
    return Table("A step of the service at partitioned, ms", ("", *(f"{users} users" for users in breakdown)), rows)


def _runs(document: Document, figure: int) -> list[Row]:
    return [run for run in document["runs"] if run["figure"] == figure]


def _users(document: Document) -> list[Row]:
    """Figure 4: answer times against those of `open`, and throughput, over the number of users."""
    runs = [run for run in _runs(document, 4) if run["tokens_per_s"]]
    beside = {run["users"]: run["answer_ms"] for run in runs if run["level"] == OPEN and run["answer_ms"]}
    ratios = [run["answer_ms"] / beside[run["users"]] if run["users"] in beside else None for run in runs]
    return [{**run, "ratio": ratio} for run, ratio in zip(runs, ratios, strict=True)]


def _both_models(document: Document) -> list[Row]:
    larger = _runs(document, 5)
    smaller = _runs(document, 4) if larger else []
    load = ("users", "input_tokens", "output_tokens")
    runs = [*larger, *(run for run in smaller if all(run[name] == larger[0][name] for name in load))]
    return [{**run, "seconds": run["answer_ms"] and run["answer_ms"] / 1000} for run in runs]


def _lengths(document: Document) -> list[Row]:
    return [{**run, "load": "{input_tokens} in\n{output_tokens} out".format_map(run)} for run in _runs(document, 6)]


def _phases(document: Document) -> list[Row]:
    """Figure 7: the parts of a step of the service at `partitioned`; beside them what `open` takes for a token."""
    rows = []
    for users, each in document["breakdown"].items():
        phases = {name.replace("_", " "): ms for name, ms in each["phases_ms"].items()}
        rows += [{"bar": f"{users} users, {PARTITIONED}", "phase": name, "ms": ms} for name, ms in phases.items()]
        whole = each["between_tokens_ms"][OPEN]
        rows.append({"bar": f"{users} users, {OPEN}", "phase": "between tokens at open", "ms": whole})
    return rows


_OVER_USERS = {"xlabel": "users at once"}
FIGURES = {
    "spd-users": charts(
        _users,
        "{input_tokens} tokens in, {output_tokens} out",
        Panel("users", "ratio", "level", "time of an answer, over that of open", log="xy", labels=_OVER_USERS),
        Panel("users", "tokens_per_s", "level", "output tokens/s", log="x", labels=_OVER_USERS),
        grid=(1, 2),
    ),
    "spd-models": charts(
        _both_models,
        "{users} users, {input_tokens} tokens in, {output_tokens} out",
        Panel("model", "seconds", "level", "time of an answer, s", "bars"),
    ),
    "spd-lengths": charts(
        _lengths, "{users} users", Panel("load", "per_token_ms", "level", "ms for each token", "bars")
    ),
    "spd-breakdown": charts(
        _phases, "where a step's time goes", Panel("bar", "ms", "phase", "ms in a step", "stacked")
    ),
}
