"""All trials of a GPU machine in one run and one JSON, each in its own processes, the most telling first."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[3]
LEAST_S = 30  # no trial is begun with less time left
Found = dict[str, Any]


@dataclass(frozen=True)
class Part:
    name: str
    command: list[str]
    wrong: Callable[[Found], list[str]]
    most_s: float = 240.0


def wrong_in_check(found: Found) -> list[str]:
    far = [f"{name}: far from float64" for name in found["checks"]["wrong"]]
    return far + [f"{name}: other bits" for name in found["checks"]["other_bits"]]


def wrong_in_partition(found: Found) -> list[str]:
    """Only the row of a vault that does not answer may be late."""
    wrong = []
    for row in found["partition"]:
        case = f"{row['users']} × {row['prompt']}"
        if row.get("same_bits") is False:
            wrong.append(f"{case}: other bits")
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


def parts(like: Path, gguf: Path | None, folder: Path) -> list[Part]:
    def trial(name: str, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "cloister_bench.gpu.trials", name, *arguments]

    model = ["--model", str(gguf)] if gguf else ["--model", str(folder / "model"), "--like", str(like)]
    return [
        Part("check", trial("check"), wrong_in_check),
        Part("partition", trial("partition"), wrong_in_partition),
        Part("serve", trial("serve", *model), wrong_in_serve, most_s=300.0),
        Part("weights", trial("weights"), wrong_in_weights),
    ]


def run(part: Part, folder: Path, left_s: float) -> tuple[Found, list[str]]:
    """A trial writes as it goes, and is ended when its time is over."""
    file, most = folder / f"{part.name}.json", min(part.most_s, left_s)
    command = [*part.command, "--json", str(file)]
    path = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
    began = time.monotonic()
    try:
        ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, timeout=most, check=False)
        status: int | str = ended.returncode
    except subprocess.TimeoutExpired:
        status = "took too long"
    try:
        found = json.loads(file.read_text())
        wrong = part.wrong(found)
    except (OSError, ValueError, LookupError) as failure:
        found, wrong = {}, [f"no result ({type(failure).__name__})"]
    if status:
        wrong.append(f"exit status {status}" if isinstance(status, int) else status)
    return {**found, "took_s": time.monotonic() - began, "wrong": wrong}, wrong


def run_all(json_file: Path, like: Path, gguf: Path | None, minutes: float, skip: str) -> bool:
    """Whether all that was tried is right."""
    end = time.monotonic() + 60 * minutes
    everything: Found = {}
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        for part in parts(like, gguf, Path(name)):
            left = end - time.monotonic()
            if part.name in skip.split(","):
                continue
            if left < LEAST_S:
                everything[part.name], wrong = {"wrong": ["no time was left"]}, ["no time was left"]
            else:
                everything[part.name], wrong = run(part, Path(name), left)
            failed += [f"{part.name}: {each}" for each in wrong]
            json_file.write_text(json.dumps(everything, indent=1))
            print(f"## {part.name}: {'; '.join(wrong) or 'right'}", flush=True)
    print("\n".join(failed) or "All is right.")
    return not failed
