"""The run of all trials on a GPU machine: what it calls wrong, and that nothing wrong passes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cloister_bench.gpu.trials import run

CHECKED = {"checks": {"wrong": [], "other_bits": []}}
SEALED, CONTROL = {"way": "kernel", "sealed": True}, {"way": "access", "sealed": False, "after": "changed"}
SERVED = {"answers": {"differing": []}, "obfuscated": {"differing": [], "failed": []}, "kills": {}}


@pytest.mark.parametrize(
    ("part", "good", "bad"),
    [
        ("check", CHECKED, {"checks": {"wrong": ["norm"], "other_bits": []}}),
        ("check", CHECKED, {"checks": {"wrong": [], "other_bits": ["65 rows"]}}),
        (
            "partition",
            {"partition": [{"users": 1, "prompt": 64}, {"users": 1, "prompt": 64, "same_bits": True, "late": []}]},
            {"partition": [{"users": 1, "prompt": 64, "same_bits": False, "late": []}]},
        ),
        (
            "partition",
            {"partition": [{"users": 6, "prompt": 64, "same_bits": True, "silent": True, "late": [5]}]},
            {"partition": [{"users": 6, "prompt": 64, "same_bits": True, "silent": False, "late": [5]}]},
        ),
        ("serve", SERVED, SERVED | {"answers": {"differing": ["isolated greedy"]}}),
        ("serve", SERVED, SERVED | {"kills": "failed: Timeout"}),
        ("serve", SERVED, SERVED | {"obfuscated": {"differing": ["1 span"], "failed": []}}),
        ("serve", SERVED, SERVED | {"obfuscated": {"differing": [], "failed": ["TimeoutError"]}}),
        (
            "weights",
            {"weights": [SEALED | {"after": "as before"}, CONTROL]},
            {"weights": [SEALED | {"after": "changed"}, CONTROL]},
        ),
        (
            "weights",
            {"weights": [SEALED | {"after": "as before"}, CONTROL]},
            {"weights": [SEALED | {"after": "as before"}, CONTROL | {"after": "as before"}]},
        ),
    ],
)
def test_what_should_not_be_is_called_wrong(part: str, good: dict[str, Any], bad: dict[str, Any]) -> None:
    wrong = getattr(run, f"wrong_in_{part}")
    assert wrong(good) == [] and wrong(bad) != []


@pytest.mark.parametrize(
    ("writes", "most_s", "failed"),
    [
        ("'{}'", 60.0, False),
        ("'no JSON'", 60.0, True),
        ("'{}'); sys.exit(3", 60.0, True),
        ("'{}'); time.sleep(60", 0.5, True),
    ],
)
def test_a_part_that_ends_badly_or_late_or_says_nothing_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, writes: str, most_s: float, failed: bool
) -> None:
    program = f"import sys, time; open(sys.argv[-1], 'w').write({writes})"
    part = run.Part("one", [sys.executable, "-c", program], lambda found: [], most_s=most_s)
    monkeypatch.setattr(run, "parts", lambda *_: [part])
    json_file = tmp_path / "all.json"
    assert run.run_all(json_file, tmp_path, None, 12.0, "") is not failed
    assert bool(json.loads(json_file.read_text())["one"]["wrong"]) is failed


def test_what_there_was_no_time_for_fails_the_run(tmp_path: Path) -> None:
    assert not run.run_all(tmp_path / "all.json", tmp_path, None, 0.1, "")
    noted = json.loads((tmp_path / "all.json").read_text())
    assert set(noted) == {"check", "partition", "serve", "weights"}
