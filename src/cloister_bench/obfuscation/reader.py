"""Blind cases for a reader, who sees λ+1 whole prompts in a drawn order and names the one that is real. The key is in
another file."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cloister.errors import SetupError
from cloister_bench.obfuscation.adversaries import Trial
from cloister_bench.suite.documents import Row, rate_of, write_json

QUESTION = (
    "One of these prompts was written by a person; in each of the others a program replaced the words that differ. "
    "Read them closely and name the number of the one that you take for the original."
)


def export_cases(trials: Sequence[Trial], most: int, cases: Path, key: Path, seed: int = 0) -> int:
    """As many of each group as fit, drawn; how many were written."""
    draw = random.Random(seed)
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.group, []).append(trial)
    chosen: list[Trial] = []
    while any(groups.values()) and len(chosen) < most:
        chosen += [those.pop(0) for those in groups.values() if those][: most - len(chosen)]
    draw.shuffle(chosen)
    shown, answers = [], {}
    for number, trial in enumerate(chosen):
        order = draw.sample(range(len(trial.texts)), len(trial.texts))
        shown.append(
            {"id": number, "kind": trial.group, "prompts": {at: trial.texts[one] for at, one in enumerate(order)}}
        )
        answers[str(number)] = {"kind": trial.group, "real": order.index(0), "of": len(order)}
    write_json({"question": QUESTION, "answer as": {"0": 3, "1": 5}, "cases": shown}, cases)
    write_json(answers, key)
    return len(shown)


def score_answers(answers: Path, key: Path) -> list[Row]:
    """What has no answer, or one that no prompt has, is wrong."""
    said, keyed = _read(answers), _read(key)
    rows = [(one["kind"], said.get(number) == one["real"]) for number, one in keyed.items()]
    kinds = [*dict.fromkeys(kind for kind, _ in rows), "all"]
    hits = {kind: [hit for of, hit in rows if kind in (of, "all")] for kind in kinds}
    return [{"group": kind, **rate_of(sum(found), len(found))} for kind, found in hits.items()]


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as wrong:
        raise SetupError(f"{path} cannot be read: {wrong}.", hint="Give a JSON file.") from None
    if not isinstance(found, dict):
        raise SetupError(f"{path} is no JSON object.", hint='Answers look like {"0": 3, "1": 5}.')
    return found
