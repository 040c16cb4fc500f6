"""All trials in one run and one JSON, each in its own processes: what breaks one costs no other. This process never
opens the GPU."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from cloister_bench.gpu.results import ROWS, Results
from cloister_bench.gpu.trials import WITH_MODEL
from cloister_bench.suite.measurement import Measurement, Watcher

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


def wrong_in_million(found: Found) -> list[str]:
    said = found["million"]
    alarms = said["alarms"] + said.get("error deviation", 0)
    return [f"{alarms} alarms"] * bool(alarms) + [f"{said['tokens']} tokens"] * (said["tokens"] < 1_000_000)


def wrong_in(trial: str, found: Found) -> list[str]:
    if trial in ROWS:
        return wrong_in_rows(found[trial])
    judges = {"check": wrong_in_check, "serve": wrong_in_serve, "weights": wrong_in_weights}
    judges |= {"passes": lambda found: [] if found["passes"] else ["nothing was measured"]}
    return (judges | {"verified": wrong_in_verified, "million": wrong_in_million})[trial](found)


def ended(command: Sequence[str], log: Path, most_s: float) -> str:
    """Why it did not end well. When its time is over, it is ended with all it started."""
    path = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
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
