"""Everything that a GPU machine can show, in one run and one JSON: builds, checks, proves, serves, times.

    python scripts/gpu_all.py --json FILE --like FOLDER [--gguf SmolLM2.gguf] [--minutes 12] [--skip bench,weights]

`--like` holds a configuration and a tokenizer, as a converted model does. With a GGUF file the weights are SmolLM2's
own, else random ones of its shape. The parts, each in processes of its own, the most telling first:

    check      kernels against float64; with real weights, 64 sequences bit for bit in any batch, and greedy tokens
               against transformers in fp32; products beside cuBLAS's
    partition  `open` and `partitioned` have the same bits, with attention processes under MPS
    serve      `cloister serve`, asked by the `openai` client at every level; killed under load
    obfuscate  a node at `obfuscated`: the same answers
    weights    whether a sealed vault can write the weights of all
    bench      `cloister bench gpu` for what is left of the time

Its exit status says whether all that was proven is as it should be; what the bench measures is not judged here.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SPARE = 26
"""Vaults that are ready for the node's users."""
USERS = 24
LEAST_S = 30
"""No part is begun with less time left."""


@dataclass(frozen=True)
class Part:
    """A command that writes a JSON, and what is wrong in it."""

    name: str
    command: list[str]
    wrong: Callable[[dict[str, Any]], list[str]]
    most_s: float = 240.0


def wrong_in_check(found: dict[str, Any]) -> list[str]:
    wrong = [f"{name}: far from float64" for name in found["checks"]["wrong"]]
    wrong += [f"{name}: other bits" for name in found["checks"]["other_bits"]]
    real = found.get("real_weights", {})
    wrong += [f"real weights, {name}: other bits" for name in real.get("other_bits", [])]
    if real.get("within_a_quarter_logit_of_its_best", 1.0) < 1.0:
        wrong.append("a token is not near transformers' best")
    return wrong


def wrong_in_partition(found: dict[str, Any]) -> list[str]:
    return [
        f"{row['users']} × {row['prompt']}: other bits" for row in found["partition"] if row.get("same_bits") is False
    ]


def wrong_in_serve(found: dict[str, Any]) -> list[str]:
    wrong = [f"{name}: {found[name]}" for name in ("answers", "kills") if not isinstance(found.get(name), dict)]
    if not wrong:
        wrong = [f"other answer: {each}" for each in found["answers"]["differing"]]
    return wrong


def wrong_in_obfuscate(found: dict[str, Any]) -> list[str]:
    wrong = [f"{kind}: {each}" for kind in ("differing", "failed") for each in found.get(kind, [])]
    return wrong + ([found["stopped"]] if "stopped" in found else [])


def wrong_in_weights(found: dict[str, Any]) -> list[str]:
    changed = [row for row in found["weights"] if row["sealed"] and row["weights"] == "changed"]
    return [f"a sealed vault, {row['way']}" for row in changed]


def parts(options: argparse.Namespace, folder: Path) -> list[Part]:
    def script(name: str, *arguments: str) -> list[str]:
        return [sys.executable, str(HERE / f"gpu_{name}.py"), *arguments]

    gguf = ["--gguf", str(options.gguf)] if options.gguf else []
    model = ["--model", str(folder / "model")]
    made = [*model, "--like", str(options.like), *(gguf or ["--random", "same"])]
    spare = [f"--option={word}" for word in ("--spare-vaults", str(SPARE))]
    users = ["--users", str(USERS), "--vault-users", str(USERS), "--timed", "open,partitioned"]
    bench = [sys.executable, "-m", "cloister_bench", "gpu"]
    return [
        Part("check", script("check", *gguf), wrong_in_check),
        Part("partition", script("check", "--partition", *gguf), wrong_in_partition),
        Part("serve", script("serve", *made, *users, *spare), wrong_in_serve),
        Part("obfuscate", script("obfuscate", *model, "--seconds", "60"), wrong_in_obfuscate),
        Part("weights", script("weights"), wrong_in_weights),
        Part("bench", bench, lambda found: [], most_s=1800.0),
    ]


def run(part: Part, folder: Path, left_s: float) -> tuple[dict[str, Any], list[str]]:
    """What a part found, and what is wrong; it writes what it has as it goes, and is ended when its time is over."""
    file, most = folder / f"{part.name}.json", min(part.most_s, left_s)
    command = [*part.command, "--json", str(file)]
    if part.name == "bench":
        command += ["--minutes", f"{max(0.1, most / 60 - 0.5):.1f}"]
    began = time.monotonic()
    try:
        status: int | str = subprocess.run(command, cwd=HERE.parent, timeout=most, check=False).returncode
    except subprocess.TimeoutExpired:
        status = "took too long"
    try:
        found = json.loads(file.read_text())
        wrong = part.wrong(found)
    except (OSError, ValueError, LookupError) as failure:
        found, wrong = {}, [f"no result ({type(failure).__name__})"]
    if status and part.name != "bench":  # which says with its status that not all was measured
        wrong.append(f"exit status {status}" if isinstance(status, int) else status)
    return {**found, "took_s": time.monotonic() - began, "wrong": wrong}, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--like", type=Path, required=True, help="folder with a configuration and a tokenizer")
    parser.add_argument("--gguf", type=Path, help="SmolLM2's own weights")
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--skip", default="", help="of check, partition, serve, obfuscate, weights, bench")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    everything: dict[str, Any] = {}
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        for part in parts(options, Path(name)):
            left = end - time.monotonic()
            if part.name in options.skip.split(","):
                continue
            if left < LEAST_S:
                everything[part.name], wrong = {"wrong": ["no time was left"]}, ["no time was left"]
            else:
                everything[part.name], wrong = run(part, Path(name), left)
            failed += [f"{part.name}: {each}" for each in wrong]
            options.json.write_text(json.dumps(everything, indent=1))
            print(f"## {part.name}: {'; '.join(wrong) or 'as it should be'}", flush=True)
    print("\n".join(failed) or "All is as it should be.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
