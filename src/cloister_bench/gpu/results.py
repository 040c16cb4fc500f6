"""The document of `bench gpu`, its targets, tables and figures. Measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cloister.levels import ISOLATED, OBFUSCATED, OPEN, PARTITIONED
from cloister_bench.gpu.plan import DEFAULT_PROCESSES, Plan
from cloister_bench.gpu.shapes import LLAMA_3_8B, SHAPES, step_bytes
from cloister_bench.suite import documents
from cloister_bench.suite.documents import (
    Cell,
    Document,
    Panel,
    Row,
    Table,
    Target,
    charts,
    find,
    number,
    targets_table,
    value_of,
)

ROWS = ("floor", "steps", "requests", "transformers", "breakdown", "variants", "memory", "not offered")
PHASES = (
    "q_projection",
    "kv_projection",
    "output_attention",
    "waiting_for_input_attention",
    "merge",
    "output_projection_and_mlp",
    "other",
)  # by the names of `bench spd`; `other`: norms, head and choice of a token
STEP_TARGETS = {64: 1.05, 2048: 1.08}  # partitioned over open, by the prompt's tokens
MEAN_ANSWERED = 40  # of an answer's tokens while steps are timed: what the floor counts beside the prompt


def timed_steps(document: Document) -> list[Row]:
    """Those that are broken down into parts among them: they were measured the same way."""
    return [*document["steps"], *document["breakdown"]]


def _step(users: int, prompt: int) -> Callable[[Document], float | None]:
    having = {"shape": LLAMA_3_8B, "design": PARTITIONED, "processes": min(users, DEFAULT_PROCESSES)}
    find_it = value_of("timed", "ratio", users=users, prompt=prompt, **having)
    return lambda document: find_it({"timed": timed_steps(document)})


_of_8b = partial(value_of, shape=LLAMA_3_8B)
_request = partial(_of_8b, "requests", "ratio", design=PARTITIONED, users=32, processes=DEFAULT_PROCESSES)
_floor = partial(_of_8b, "steps", "to_floor", design=OPEN, prompt=64)


def _generate(users: int) -> Callable[[Document], float | None]:
    """Over the better of generate's, compiled or not."""

    def measured(document: Document) -> float | None:
        load = {"shape": LLAMA_3_8B, "users": users, "prompt": 64, "answer": 64}
        theirs = [row["tokens_per_s"] for row in document["transformers"] if load.items() <= row.items()]
        ours = value_of("requests", "tokens_per_s", design=OPEN, **load)(document)
        return ours / max(theirs) if ours and theirs else None

    return measured


TARGETS = (
    *(
        Target(f"partitioned over open, a step, {users} × {prompt:,}", target, _step(users, prompt), "at most")
        for prompt, target in STEP_TARGETS.items()
        for users in (1, 8, 32, 64)
    ),
    Target("throughput of partitioned over open, 32 × 64/64", 0.85, _request(prompt=64, answer=64)),
    Target("throughput of partitioned over open, 32 × 512/128", 0.85, _request(prompt=512, answer=128)),
    Target("open over the floor, 1 user", 1.25, _floor(users=1), "at most"),
    Target("open over the floor, 8 users", 1.25, _floor(users=8), "at most"),
    Target("throughput of open over transformers' generate, 8 × 64/64", 1.5, _generate(8)),
    Target("throughput of open over transformers' generate, 32 × 64/64", 1.5, _generate(32)),
    *(
        Target(
            f"obfuscated, λ = {fakes}, {users} user{'s' if users > 1 else ''}, over λ = 0",
            target,
            _of_8b("variants", "ratio", users=users, **{"lambda": fakes}),
            "at most",
        )
        for fakes, users, target in ((8, 8, 1.08), (64, 1, 1.07))
    ),
    Target(
        "one of eight attention processes beside its users' KV, MB",
        250.0,
        _of_8b("memory", "mb", processes=DEFAULT_PROCESSES),
        "at most",
    ),
)


@dataclass
class Results(documents.Results):
    plan: Plan
    rows: list[Row] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # not begun for lack of time
    targets = TARGETS

    def add(self, row: Row) -> None:
        if row["part"] not in ROWS:
            raise ValueError("a row of no known part")
        if row not in self.rows:
            self.rows.append(row)

    def numbers(self) -> Document:
        found: Document = {part.replace(" ", "_"): [] for part in ROWS}
        rate = next((row["bytes_per_second"] for row in self.rows if row["part"] == "floor"), None)
        for row in self.rows:
            plain = {name: value for name, value in row.items() if name != "part"}
            found[row["part"].replace(" ", "_")].append(_rounded(_beside_the_floor(plain, rate)))
        return found

    def remarks(self) -> Document:
        return {"left_out": self.left_out, "seconds": round(self.seconds, 1)}


def _beside_the_floor(row: Row, rate: float | None) -> Row:
    """How long a step's bytes alone take, at the bandwidth of a copy in the same run."""
    if rate is None or "ms" not in row or row.get("design") == ISOLATED:
        return row
    floor = step_bytes(SHAPES[row["shape"]], row["users"], row["prompt"] + MEAN_ANSWERED) / rate * 1e3
    return {**row, "floor_ms": floor, "to_floor": row["ms"] / floor}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return round(value, 4) if isinstance(value, float) and value < 1e9 else value


def judged(document: Document) -> Document:
    return {**document, "targets": [target.verdict(document) for target in TARGETS]}


def tables(document: Document) -> list[Table]:
    shapes = dict.fromkeys(row["shape"] for row in document["steps"])
    found = [_steps(document, shape) for shape in shapes]
    found += [_requests(document), _variants(document), _breakdown(document)]
    return [*found, targets_table(document["targets"])]


def _steps(document: Document, shape: str) -> Table:
    mine = [row for row in timed_steps(document) if row["shape"] == shape]
    rows = []
    for users, prompt in dict.fromkeys((row["users"], row["prompt"]) for row in mine):
        here = [row for row in mine if (row["users"], row["prompt"]) == (users, prompt)]
        beside = find(here, design=OPEN) or {}
        asked = {row["processes"]: row["ratio"] for row in here if row["design"] == PARTITIONED}
        default, one = (asked.get(min(users, count)) for count in (DEFAULT_PROCESSES, 1))
        each = asked.get(users)
        alone = (find(here, design=ISOLATED) or {}).get("ratio")
        same = [row["same_bits"] for row in here if "same_bits" in row]
        numbers = (beside.get("ms"), beside.get("to_floor"), default, one, each, alone)
        bits = "" if not same else "the same" if all(same) else "OTHERS"
        rows.append([f"{users} × {prompt}", *map(number, numbers), bits])
    heads = ("users × prompt", "open, ms", "to the floor", "partitioned: 8", "1", "one each", ISOLATED, "bits")
    return Table(f"{shape}: a decode step, over open's", heads, rows, caption=_captions(document, shape))


def _captions(document: Document, shape: str) -> str | None:
    said = dict.fromkeys(
        f"{row['what']}: not offered ({row['reason']})" for row in document["not_offered"] if row["shape"] == shape
    )
    return "; ".join(said) or None


def _requests(document: Document) -> Table:
    columns: dict[str, str | Cell] = {
        "shape": "shape",
        "load": lambda row: f"{row['users']} × {row['prompt']}/{row['answer']}",
        "design": lambda row: row["design"] + _processes(row),
        "tokens/s": "tokens_per_s",
        "of open's": lambda row: row.get("ratio"),
        "first token, ms": "ttft_ms",
    }
    rows = (*document["requests"], *document["transformers"])
    return Table.of("Whole requests, without HTTP", rows, columns, labels=3)


def _variants(document: Document) -> Table:
    columns: dict[str, str | Cell] = {
        "shape": "shape",
        "users": "users",
        "λ": "lambda",
        "rows": lambda row: row["users"] * (row["lambda"] + 1),
        "ms": "ms",
        "over λ = 0": "ratio",
        "bits": lambda row: "the same" if row["same_bits"] else "OTHERS",
    }
    return Table.of(f"A decode step of {OBFUSCATED}", document["variants"], columns)


def _processes(row: Row) -> str:
    count = row["processes"] if row["design"] == PARTITIONED else 0
    return f", {count} process{'es' if count > 1 else ''}" if count else ""


def bar_name(row: Row) -> str:
    return f"{row['design']}{_processes(row)}, {row['users']} users"


def _breakdown(document: Document) -> Table:
    bars = document["breakdown"]
    rows = [[name.replace("_", " "), *(f"{bar['phases_ms'][name]:.3f}" for bar in bars)] for name in PHASES]
    rows += [["whole step", *(f"{bar['ms']:.3f}" for bar in bars)]]
    return Table("Where a step goes, ms", ("", *map(bar_name, bars)), rows if bars else [])


def phases(us: Mapping[str, float], layers: int, queries: float, step_ms: float, *, asks: bool) -> dict[str, float]:
    """Figure 7 in ms, of kernels timed alone; merging counts as waiting. `queries`: the share of Q in Q, K and V."""
    ms = layers / 1e3
    parts = dict.fromkeys(PHASES, 0.0)
    parts["q_projection"] = us["qkv"] * queries * ms
    parts["kv_projection"] = (us["qkv"] * (1 - queries) + us["rotate"]) * ms
    parts["output_attention"] = us["attend"] * ms
    parts["output_projection_and_mlp"] = (us["out"] + us["gate_up"] + us["down"]) * ms
    parts["other"] = 2 * us["norm"] * ms + (us["head"] + us["greatest"]) / 1e3
    rest = step_ms - sum(parts.values())
    parts["waiting_for_input_attention" if asks else "other"] += max(0.0, rest)
    return parts


def _setting(row: Row) -> str:
    count, users = row["processes"], row["users"]
    if count == min(users, DEFAULT_PROCESSES):
        return "eight attention processes"
    return "one attention process" if count == 1 else "one for each user"


def _partitioned_steps(document: Document) -> list[Row]:
    return [row for row in timed_steps(document) if row["design"] == PARTITIONED]


def _shapes(document: Document) -> list[Row]:
    """At the default setting; nothing if there is one shape alone."""
    short = [row for row in _partitioned_steps(document) if row["prompt"] == 64]
    found = [row for row in short if row["processes"] == min(row["users"], DEFAULT_PROCESSES)]
    return found if len({row["shape"] for row in found}) > 1 else []


def _steps_of_8b(document: Document) -> list[Row]:
    rows = [row for row in _partitioned_steps(document) if row["shape"] == LLAMA_3_8B]
    return [{**row, "setting": _setting(row)} for row in rows]


def _requests_of_8b(document: Document) -> list[Row]:
    rows = [row for row in (*document["requests"], *document["transformers"]) if row["shape"] == LLAMA_3_8B]
    return [{**row, "bar": f"{bar_name(row)}, {row['prompt']}/{row['answer']}"} for row in rows]


def _parts(document: Document) -> list[Row]:
    return [
        {"bar": bar_name(row), "phase": name.replace("_", " "), "ms": row["phases_ms"][name]}
        for row in document["breakdown"]
        for name in PHASES
    ]


FIGURES = {
    "gpu-steps": charts(
        _steps_of_8b,
        "a decode step of partitioned over open's (dashed: target)",
        *(
            Panel("users", "ratio", "setting", f"prompts of {prompt:,}", where={"prompt": prompt}, limit=limit, log="x")
            for prompt, limit in STEP_TARGETS.items()
        ),
        grid=(1, 2),
    ),
    "gpu-shapes": charts(
        _shapes,
        f"a decode step, prompts of 64, {DEFAULT_PROCESSES} attention processes",
        Panel("shape", "ratio", "users", "partitioned over open", "bars"),
    ),
    "gpu-requests": charts(
        _requests_of_8b,
        "whole requests, without HTTP",
        Panel("bar", "tokens_per_s", "design", "output tokens/s", "stacked"),
    ),
    "gpu-breakdown": charts(_parts, "where a step's time goes", Panel("bar", "ms", "phase", "ms in a step", "stacked")),
}
