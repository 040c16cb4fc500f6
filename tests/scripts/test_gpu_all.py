"""The script that does all on a GPU machine: what it calls wrong, and that nothing wrong passes."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_all.py"
CHECKED = {"checks": {"wrong": [], "other_bits": []}}
REAL = {"other_bits": [], "within_a_quarter_logit_of_its_best": 1.0}
SEALED = {"way": "kernel", "sealed": True}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_all", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_all"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("part", "good", "bad"),
    [
        ("check", CHECKED, {"checks": {"wrong": ["norm"], "other_bits": []}}),
        ("check", CHECKED, {"checks": {"wrong": [], "other_bits": ["65 rows"]}}),
        ("check", CHECKED | {"real_weights": REAL}, CHECKED | {"real_weights": REAL | {"other_bits": ["one row"]}}),
        (
            "check",
            CHECKED | {"real_weights": REAL},
            CHECKED | {"real_weights": REAL | {"within_a_quarter_logit_of_its_best": 0.99}},
        ),
        (
            "partition",
            {"partition": [{"users": 1, "prompt": 64}, {"users": 1, "prompt": 64, "same_bits": True}]},
            {"partition": [{"users": 1, "prompt": 64, "same_bits": False}]},
        ),
        (
            "serve",
            {"answers": {"differing": []}, "kills": {}},
            {"answers": {"differing": ["isolated greedy"]}, "kills": {}},
        ),
        (
            "serve",
            {"answers": {"differing": []}, "kills": {}},
            {"answers": {"differing": []}, "kills": "failed: Timeout"},
        ),
        ("obfuscate", {"differing": [], "failed": []}, {"differing": ["1 span"], "failed": []}),
        ("obfuscate", {"differing": [], "failed": []}, {"stopped": "TimeoutError"}),
        ("weights", {"weights": [SEALED | {"weights": "as before"}]}, {"weights": [SEALED | {"weights": "changed"}]}),
    ],
)
def test_what_should_not_be_is_called_wrong(
    script: ModuleType, part: str, good: dict[str, Any], bad: dict[str, Any]
) -> None:
    wrong = getattr(script, f"wrong_in_{part}")
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
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, writes: str, most_s: float, failed: bool
) -> None:
    program = f"import sys, time; open(sys.argv[-1], 'w').write({writes})"
    part = script.Part("one", [sys.executable, "-c", program], lambda found: [], most_s=most_s)
    monkeypatch.setattr(script, "parts", lambda *_: [part])
    json_file = tmp_path / "all.json"
    monkeypatch.setattr(sys, "argv", ["gpu_all.py", "--json", str(json_file), "--like", str(tmp_path)])
    assert script.main() == int(failed)
    assert bool(json.loads(json_file.read_text())["one"]["wrong"]) is failed


def test_what_there_was_no_time_for_fails_the_run(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arguments = ["--json", str(tmp_path / "all.json"), "--like", str(tmp_path), "--minutes", "0.1", "--skip", "bench"]
    monkeypatch.setattr(sys, "argv", ["gpu_all.py", *arguments])
    assert script.main() == 1
    told = json.loads((tmp_path / "all.json").read_text())
    assert set(told) == {"check", "partition", "serve", "obfuscate", "weights"}
