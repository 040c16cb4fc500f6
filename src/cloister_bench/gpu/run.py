"""All trials in one run and one JSON, each in its own processes: what breaks one costs no other. This process never
opens the GPU. The document has targets, tables and a figure."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from cloister.levels import OBFUSCATED, OPEN, PARTITIONED
from cloister_bench.gpu.model import DEFAULT_PROCESSES, step_bytes
from cloister_bench.gpu.trials import MODULES, WITH_MODEL
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
from cloister_bench.suite.measurement import Measurement, Watcher

ROWS = ("steps", "requests", "obfuscated")
STEP_TARGETS = {64: 1.05, 2048: 1.08}  # partitioned over open, by the prompt's tokens
MEAN_ANSWERED = 40  # of an answer's tokens while steps are timed: what the floor counts beside the prompt

_request = partial(value_of, "requests", "ratio", design=PARTITIONED, users=32, processes=DEFAULT_PROCESSES)
_floor = partial(value_of, "steps", "to_floor", design=OPEN, prompt=64)


def _fakes(users: int, fakes: int) -> Callable[[Document], float | None]:
    return value_of("obfuscated", "ratio", users=users, **{"lambda": fakes})


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
    *(Target(f"open over the floor, {users} × 64", 1.25, _floor(users=users), "at most") for users in (1, 8)),
    *(
        Target(f"obfuscated, λ = {fakes}, {users} × 64, over λ = 0", most, _fakes(users, fakes), "at most")
        for fakes, users, most in ((8, 8, 1.08), (64, 1, 1.07))
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


SOURCE = Path(__file__).parents[2]
LEAST_S, MOST_S = 30.0, 480.0  # no trial is begun with less time left; none may take longer
Found = dict[str, Any]


def wrong_in_check(found: Found) -> list[str]:
    far = [f"{name}: far from float64" for name in found["checks"]["wrong"]]
    return far + [f"{name}: other bits" for name in found["checks"]["other_bits"]]


def wrong_in_rows(rows: Sequence[Found]) -> list[str]:
    """Only the row of a vault that does not answer may be late."""
    wrong = [] if rows else ["nothing was measured"]
    for row in rows:
        case = f"{row['users']} × {row['prompt']}"
        if row.get("same_bits") is False or row.get("same_tokens") is False:
            wrong.append(f"{case}: others than open's")
        if "late" in row and row["late"] != ([row["users"] - 1] if row.get("silent") else []):
            wrong.append(f"{case}: late rows {row['late']}")
    return wrong


def wrong_in_queries(found: Found) -> list[str]:
    """Prompts must have been shared out in both ways."""
    wrong = [] if found["queries"] else ["nothing was compared"]
    for row in found["queries"]:
        bad = [name for name in ("same", "tokens", "asked") if not row[name]] + ["a link broke"] * bool(row["broken"])
        bad += [name for name, seen in row.get("altered", {}).items() if not seen]
        wrong += [f"{row['users']} users, heads of {row['dim']}: {name}" for name in bad]
    both = ("as_tasks", "as_groups", "altered")
    return wrong + [f"none {name}" for name in both if not any(row.get(name) for row in found["queries"])]


def wrong_in_serve(found: Found) -> list[str]:
    parts = ("answers", "obfuscated", "kills")
    wrong = [f"{name}: {found.get(name)}" for name in parts if not isinstance(found.get(name), dict)]
    if not wrong:
        wrong += [f"other answer: {each}" for name in parts[:2] for each in found[name]["differing"]]
        wrong += [f"no answer: {each}" for each in found["obfuscated"]["failed"]]
    return wrong


def wrong_in_weights(found: Found) -> list[str]:
    """The one that is not sealed must write them, or the others prove nothing."""
    wrong = [f"a sealed vault, {row['way']}" for row in found["weights"] if row["sealed"] and row["after"] == "changed"]
    control = [row["after"] for row in found["weights"] if not row["sealed"]]
    return wrong if control == ["changed"] else [*wrong, f"the control without a seal: {control}"]


def wrong_in_verified(found: Found) -> list[str]:
    rows = found["verified"]
    wrong = [f"{row['mode']}, {row['users']} users: {row['errors']}" for row in rows if row["errors"]]
    return wrong + [f"{name}: {one}" for name, one in found.items() if name.startswith("same") and one != 8]


def wrong_in_churn(found: Found) -> list[str]:
    """A vault that is lost was killed, perhaps while its kernel ran, which ends all."""
    said = found["churn"]
    return ["no tokens"] * ("tokens" not in said) + ["a vault was lost"] * ("error vault_lost" in said)


def wrong_in_million(found: Found) -> list[str]:
    said = found["million"]
    alarms = said["alarms"] + said.get("error deviation", 0)
    return [f"{alarms} alarms"] * bool(alarms) + [f"{said['tokens']} tokens"] * (said["tokens"] < 1_000_000)


def wrong_in(trial: str, found: Found) -> list[str]:
    if trial in ROWS:
        return wrong_in_rows(found[trial])
    judges = {"check": wrong_in_check, "serve": wrong_in_serve, "weights": wrong_in_weights}
    judges |= {"churn": wrong_in_churn, "verified": wrong_in_verified, "queries": wrong_in_queries}
    return (judges | {"million": wrong_in_million})[trial](found)


def ended(command: Sequence[str], log: Path, most_s: float) -> str:
    """Why it did not end well. When its time is over, it is ended with all it started."""
    path = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
    with log.open("wb") as output:
        env = {**os.environ, "PYTHONPATH": path}
        child = subprocess.Popen(command, stdout=output, stderr=output, env=env, start_new_session=True)
        try:
            status = child.wait(most_s)
        except subprocess.TimeoutExpired:
            return f"took longer than {most_s:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    lines = log.read_text(errors="replace").split("\n")
    return f"exit status {status}: {' '.join(lines[-3:])[:300]}" if status else ""


class Bench(Measurement[Results]):
    """`commands`: of the trials, by name."""

    def __init__(
        self,
        results: Results,
        commands: dict[str, list[str]],
        watcher: Watcher,
        save: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(results, watcher, save)
        self._commands = commands

    def run(self, folder: Path) -> None:
        self._watcher.begin("trials", len(self._commands))
        for name, command in self._commands.items():
            self._watcher.say(name)
            left = 60 * self._results.plan.minutes - self._elapsed
            wrong = self._trial(name, command, folder, left) if left >= LEAST_S else ["no time was left"]
            self._results.failed += [{"part": name, "reason": each} for each in wrong]
            self._results.seconds = self._elapsed
            self._save()
            self._watcher.advance(name)

    def _trial(self, name: str, command: list[str], folder: Path, left_s: float) -> list[str]:
        file, began = folder / f"{name}.json", monotonic()
        status = ended([*command, "--json", str(file)], folder / f"{name}.log", min(MOST_S, left_s))
        try:
            found = json.loads(file.read_text())
            self._results.trials[name] = {**found, "took_s": round(monotonic() - began, 1)}
            wrong = wrong_in(name, found)
        except (OSError, ValueError, LookupError) as failure:
            wrong = [f"no result ({type(failure).__name__})"]
        return [*wrong, status] if status else wrong


def commands(names: Sequence[str], model: Sequence[str]) -> dict[str, list[str]]:
    """`model`: arguments of the node that is served."""
    trial = [sys.executable, "-m", "cloister_bench.gpu.trials"]
    return {name: [*trial, name, *(model if name in WITH_MODEL else ())] for name in names}
