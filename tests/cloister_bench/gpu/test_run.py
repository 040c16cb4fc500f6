"""The run of all trials on a GPU machine: what it calls wrong, and that nothing wrong passes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from cloister_bench.gpu.run import Bench, Plan, Results, commands, ended, wrong_in
from cloister_bench.gpu.trials import MODULES

CHECKED = {"checks": {"wrong": [], "other_bits": []}}
SEALED, CONTROL = {"way": "kernel", "sealed": True}, {"way": "access", "sealed": False, "after": "changed"}
SERVED = {"answers": {"differing": []}, "obfuscated": {"differing": [], "failed": []}, "kills": {}}
ASKED: dict[str, Any] = {"mode": "all", "users": 32, "errors": {}}
HONEST = {"million": {"tokens": 1_000_000, "alarms": 0}}
QUERIED = {
    "users": 8,
    "dim": 64,
    "same": True,
    "tokens": True,
    "asked": True,
    "broken": 0,
    "as_tasks": 9,
    "as_groups": 9,
}
QUERIED |= {"as_tasks": 9, "as_groups": 9, "altered": {"one number": True}}
ROW = {"users": 6, "prompt": 64, "same_bits": True, "late": []}


@pytest.mark.parametrize(
    ("part", "good", "bad"),
    [
        ("check", CHECKED, {"checks": {"wrong": ["norm"], "other_bits": []}}),
        ("check", CHECKED, {"checks": {"wrong": [], "other_bits": ["65 rows"]}}),
        *(
            ("queries", {"queries": [QUERIED]}, {"queries": bad})
            for bad in (
                [],
                [QUERIED | {"same": False}],
                [QUERIED | {"broken": 1}],
                [QUERIED | {"as_tasks": 0}],
                [QUERIED | {"altered": {"one number": False}}],
            )
        ),
        ("steps", {"steps": [ROW]}, {"steps": [ROW | {"same_bits": False}]}),
        ("steps", {"steps": [ROW | {"silent": True, "late": [5]}]}, {"steps": [ROW | {"late": [5]}]}),
        ("obfuscated", {"obfuscated": [ROW]}, {"obfuscated": []}),
        ("requests", {"requests": [ROW]}, {"requests": [ROW | {"same_tokens": False}]}),
        ("serve", SERVED, SERVED | {"answers": {"differing": ["isolated greedy"]}}),
        ("serve", SERVED, SERVED | {"kills": "failed: Timeout"}),
        ("serve", SERVED, SERVED | {"obfuscated": {"differing": ["1 span"], "failed": []}}),
        ("serve", SERVED, SERVED | {"obfuscated": {"differing": [], "failed": ["TimeoutError"]}}),
        ("churn", {"churn": {"tokens": 9}}, {"churn": {"tokens": 9, "error vault_lost": 1}}),
        ("churn", {"churn": {"tokens": 9, "error queue_full": 1}}, {"churn": {}}),
        ("verified", {"same all": 8, "verified": [ASKED]}, {"same all": 7, "verified": [ASKED]}),
        ("verified", {"verified": [ASKED]}, {"verified": [ASKED | {"errors": {"error deviation": 1}}]}),
        ("million", HONEST, {"million": HONEST["million"] | {"alarms": 1}}),
        ("million", HONEST, {"million": HONEST["million"] | {"error deviation": 1}}),
        ("million", HONEST, {"million": HONEST["million"] | {"tokens": 999_999}}),
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
    assert wrong_in(part, good) == [] and wrong_in(part, bad) != []


class Silent:
    def begin(self, part: str, total: int) -> None: ...

    def advance(self, what: str) -> None: ...

    def say(self, what: str) -> None: ...


def tried(folder: Path, program: str, minutes: float = 12.0) -> Results:
    results = Results(Plan(("check",), minutes), "GPU")
    saved: list[int] = []
    command = [sys.executable, "-c", f"import sys, time; {program}"]
    Bench(results, {"check": command}, Silent(), lambda: saved.append(1)).run(folder)
    assert saved
    return results


def wrote(text: str) -> str:
    return f"open(sys.argv[-1], 'w').write({text!r})"


GOOD = '{"checks": {"wrong": [], "other_bits": []}}'


def test_a_trial_that_ends_badly_or_says_nothing_fails_the_run_and_keeps_what_it_wrote(tmp_path: Path) -> None:
    well = tried(tmp_path, wrote(GOOD))
    assert not well.failed and well.document()["trials"]["check"]["checks"] == {"wrong": [], "other_bits": []}
    assert tried(tmp_path, wrote("no JSON")).failed
    badly = tried(tmp_path, wrote(GOOD) + "; print('why'); sys.exit(3)")
    assert "exit status 3: why" in badly.failed[0]["reason"] and badly.trials["check"]


def test_what_there_was_no_time_for_fails_the_run(tmp_path: Path) -> None:
    assert tried(tmp_path, wrote(GOOD), 0.1).failed == [{"part": "check", "reason": "no time was left"}]


def test_a_trial_that_hangs_is_ended(tmp_path: Path) -> None:
    assert "took longer" in ended([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "log", 0.5)


def test_every_trial_has_a_command_and_only_nodes_get_a_model() -> None:
    made = commands(tuple(MODULES), ["--model", "m"])
    assert list(made) == list(MODULES)
    assert [name for name in made if "--model" in made[name]] == ["serve", "churn", "million", "verified"]
