"""The document of `bench gpu`, its targets, tables and figure. Measures nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from cloister.levels import OBFUSCATED, OPEN, PARTITIONED
from cloister_bench.gpu.model import DEFAULT_PROCESSES, step_bytes
from cloister_bench.gpu.trials import MODULES
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

ROWS = ("steps", "requests", "obfuscated")
STEP_TARGETS = {64: 1.05, 2048: 1.08}  # partitioned over open, by the prompt's tokens
MEAN_ANSWERED = 40  # of an answer's tokens while steps are timed: what the floor counts beside the prompt

_request = partial(value_of, "requests", "ratio", design=PARTITIONED, users=32, processes=DEFAULT_PROCESSES)


def _process_mb(document: Document) -> float | None:
    return next((row["mb"] for row in document["steps"] if "mb" in row and row["processes"] == DEFAULT_PROCESSES), None)


def _step(users: int, prompt: int) -> Callable[[Document], float | None]:
    having = {"design": PARTITIONED, "processes": min(users, DEFAULT_PROCESSES)}
    return value_of("steps", "ratio", users=users, prompt=prompt, **having)


TARGETS = (
    *(
        Target(f"partitioned over open, a step, {users} × {prompt:,}", target, _step(users, prompt), "at most")
        for prompt, target in STEP_TARGETS.items()
        for users in (1, 8, 32, 64)
    ),
    *(
        Target(f"throughput of partitioned over open, 32 × {p}/{a}", 0.85, _request(prompt=p, answer=a))
        for p, a in ((64, 64), (512, 128))
    ),
    *(
        Target(
            f"open over the floor, {users} × 64",
            1.25,
            value_of("steps", "to_floor", design=OPEN, prompt=64, users=users),
            "at most",
        )
        for users in (1, 8)
    ),
    *(
        Target(
            f"obfuscated, λ = {fakes}, {users} × 64, over λ = 0",
            target,
            value_of("obfuscated", "ratio", users=users, **{"lambda": fakes}),
            "at most",
        )
        for fakes, users, target in ((8, 8, 1.08), (64, 1, 1.07))
    ),
    Target("one of eight attention processes beside its users' KV, MB", 250.0, _process_mb, "at most"),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """`minutes`: no trial begins later."""

    parts: tuple[str, ...] = tuple(MODULES)
    minutes: float = 25.0


@dataclass
class Results(documents.Results):
    """`trials`: what each noted, by its name."""

    plan: Plan
    trials: dict[str, Row] = field(default_factory=dict)
    targets = TARGETS

    def numbers(self) -> Document:
        rate = self.trials.get("steps", {}).get("bytes_per_second")
        return {
            name: [_rounded(_beside_the_floor(row, rate)) for row in self.trials.get(name, {}).get(name, ())]
            for name in ROWS
        }

    def remarks(self) -> Document:
        about = {
            name: {key: one for key, one in found.items() if name not in ROWS or key != name}
            for name, found in self.trials.items()
        }
        return {"trials": about}


def _beside_the_floor(row: Row, rate: float | None) -> Row:
    """How long a step's bytes alone take, at the bandwidth of a copy in the same run."""
    if rate is None or "ms" not in row:
        return row
    floor = step_bytes(row["users"], row["prompt"] + MEAN_ANSWERED) / rate * 1e3
    return {**row, "floor_ms": floor, "to_floor": row["ms"] / floor}


def _rounded(row: Row) -> Row:
    return {key: round(one, 4) if isinstance(one, float) and one < 1e9 else one for key, one in row.items()}


def tables(document: Document) -> list[Table]:
    return [_steps(document), _requests(document), _obfuscated(document), targets_table(document["targets"])]


def _bits(rows: list[Row]) -> str:
    same = [row["same_bits"] for row in rows if "same_bits" in row]
    return "" if not same else "the same" if all(same) else "OTHERS"


def _steps(document: Document) -> Table:
    rows = []
    for users, prompt in dict.fromkeys((row["users"], row["prompt"]) for row in document["steps"] if not row["silent"]):
        here = [row for row in document["steps"] if (row["users"], row["prompt"]) == (users, prompt)]
        beside = find(here, design=OPEN) or {}
        asked = {row["processes"]: row["ratio"] for row in here if row.get("design") == PARTITIONED}
        default, one = (asked.get(min(users, count)) for count in (DEFAULT_PROCESSES, 1))
        numbers = (beside.get("ms"), beside.get("to_floor"), default, one)
        rows.append([f"{users} × {prompt}", *map(number, numbers), _bits(here)])
    heads = ("users × prompt", "open, ms", "to the floor", "partitioned: 8 processes", "1", "bits")
    return Table("A decode step, over open's", heads, rows)


def _requests(document: Document) -> Table:
    columns: dict[str, str | Cell] = {
        "load": lambda row: f"{row['users']} × {row['prompt']}/{row['answer']}",
        "design": lambda row: row["design"] + (f", {row['processes']} processes" if "processes" in row else ""),
        "tokens/s": "tokens_per_s",
        "of open's": lambda row: row.get("ratio"),
        "first token, ms": "ttft_ms",
    }
    return Table.of("Whole requests, without HTTP", document["requests"], columns, labels=2)


def _obfuscated(document: Document) -> Table:
    columns: dict[str, str | Cell] = {"users": "users", "λ": "lambda", "ms": "ms", "over λ = 0": "ratio"}
    columns["bits"] = lambda row: _bits([row])
    return Table.of(f"A decode step of {OBFUSCATED}", [row for row in document["obfuscated"] if "ms" in row], columns)


def _partitioned_steps(document: Document) -> list[Row]:
    def setting(row: Row) -> str:
        count = row["processes"]
        return "eight attention processes" if count == min(row["users"], DEFAULT_PROCESSES) else "one"

    asked = [row for row in document["steps"] if row.get("design") == PARTITIONED and not row["silent"]]
    return [{**row, "setting": setting(row)} for row in asked]


FIGURES = {
    "gpu-steps": charts(
        _partitioned_steps,
        "a decode step of partitioned over open's (dashed: target)",
        *(
            Panel("users", "ratio", "setting", f"prompts of {prompt:,}", where={"prompt": prompt}, limit=limit, log="x")
            for prompt, limit in STEP_TARGETS.items()
        ),
        grid=(1, 2),
    )
}
