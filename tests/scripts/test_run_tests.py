"""The runner of `make test`: every test file is in one group, and a group that failed is shown and counts."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def runner() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("run_tests", ROOT / "scripts" / "run_tests.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for it there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_every_folder_with_tests_is_found(runner: ModuleType) -> None:
    folders = runner.find_folders()
    assert {folder.name for folder in folders} == {
        path.name for path in (ROOT / "tests").iterdir() if path.match("test_*.py") or any(path.rglob("test_*.py"))
    }
    assert runner.Folder("serving") in folders and runner.Folder("serving", on_shares=True) in folders
    assert runner.Folder("mpc") not in folders, "all of them load SPU"


def test_byte_code_is_kept_for_all_groups(runner: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each would compile all that it imports: two minutes for the whole suite."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    command = (sys.executable, "-c", "import sys; sys.exit(sys.dont_write_bytecode)")
    assert runner.run_group(runner.Group("one", 1, (command,)), tmp_path).passed


def test_a_groups_processor_time_is_known(runner: ModuleType, tmp_path: Path) -> None:
    """With that of what its tests start and wait for."""
    work = "import time\nwhile time.process_time() < 0.3: pass"
    start = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {work!r}], check=True)\n{work}"
    result = runner.run_group(runner.Group("one", 1, ((sys.executable, "-c", start),)), tmp_path)
    assert result.passed and result.processor_seconds >= 0.6


def test_what_is_checked_in_two_minutes_is_there(runner: ModuleType) -> None:
    assert {folder.name for folder in runner.find_folders() if not folder.on_shares} >= runner.WITHOUT_PROCESSES


def test_groups_share_no_folder_and_lose_none(runner: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "WORTH_A_GROUP", 60)
    monkeypatch.setattr(runner, "SECONDS", {("long", False): 100, ("longer", True): 200, ("half", False): 30})
    names = [("long", False), ("longer", True), ("half", False), ("a", False), ("b", False), ("c", True), ("d", False)]
    groups = runner.group([runner.Folder(*name) for name in names], "--release")
    assert [group.name for group in groups] == ["longer c on shares", "long", "half a b d"]
    for group in groups:
        [command] = group.commands
        assert ("--on-shares" in command) == ("on shares" in group.name) and "--release" in command
        assert [f"tests/{name}" for name in group.name.replace(" on shares", "").split()] == [
            part for part in command if part.startswith("tests/")
        ]


def test_a_guest_is_in_its_hosts_group_and_alone_in_its_own(runner: ModuleType) -> None:
    [(guest, host)] = runner.GUESTS.items()
    folders = [runner.Folder(name) for name in (guest, "controller", host)]
    names = [group.name for group in runner.group(folders)]
    assert sorted(names) == sorted([f"{host} {guest}", "controller"])
    alone = [runner.Folder(guest), runner.Folder(host, on_shares=True)]
    assert {group.name for group in runner.group(alone)} == {guest, f"{host} on shares"}


def test_for_a_release_a_long_file_is_run_once_by_itself(runner: ModuleType) -> None:
    folders = runner.find_folders(release=True)
    alone = {name for name, _ in runner.RELEASE_SECONDS if "/" in name}
    assert alone and all((ROOT / "tests" / name).is_file() for name in alone)
    ignored = {f"--ignore=tests/{name}" for name in alone}
    for group in runner.group(folders, "--release"):
        [command] = group.commands
        mine = {f"--ignore=tests/{name}" for name in alone if f"tests/{name}" in command}
        assert ignored - mine == {part for part in command if part.startswith("--ignore")}
        assert len(group.name.split()) == 1 or not mine, "it shares its group with nobody"
    ordinary = runner.group(runner.find_folders())
    assert not any(part.startswith("--ignore") for group in ordinary for part in group.commands[0])


def test_patient_folders_have_groups_of_their_own(runner: ModuleType) -> None:
    groups = runner.group(runner.Folder(name) for name in ("cli", "messages", "link", "engine"))
    assert {group.name: group.patient for group in groups} == {"cli link": False, "engine messages": True}


def test_beside_two_others_the_patient_run_first(runner: ModuleType, tmp_path: Path) -> None:
    """Two pressing groups wait for a third; the lanes beside take the patient ones meanwhile, then the third."""
    meet = "import pathlib, sys, time\nhere, own, *awaited = map(pathlib.Path, sys.argv[1:])\n"
    meet += "found = sorted(each.name for each in here.glob('?'))\n(here / own).touch()\n"
    meet += "while not all((here / each).exists() for each in awaited): time.sleep(0.01)\n"
    meet += "print(pathlib.Path('/proc/self/stat').read_text().split(') ')[1].split()[16], *found)\n"
    awaited = {"a": ["c"], "b": ["c"], "c": ["p"], "p": ["a", "b", "q"], "q": ["c"]}
    commands = {name: (sys.executable, "-c", meet, str(tmp_path), name, *those) for name, those in awaited.items()}
    groups = [runner.Group(name, 1, (command,), name in "pq") for name, command in commands.items()]
    results = {result.group.name: result.output.split() for result in runner.run(groups, tmp_path / "logs", id)}
    own = os.nice(0)
    assert [int(results[name][0]) - own for name in "abcpq"] == [0, 0, 0, runner.NICENESS, runner.NICENESS]
    assert results["c"][1:] == ["a", "b", "p", "q"], "both wait for it, and it begins after a patient one has ended"


def says(text: str, status: int) -> tuple[str, ...]:
    return sys.executable, "-c", f"print({text!r}); raise SystemExit({status})"


def test_a_group_that_fails_is_shown_whole(
    runner: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = [
        runner.Group("good", 1, (says("first line\n1 passed", 0),)),
        runner.Group("empty", 1, (says("none here", 5),)),
        runner.Group("bad", 1, (says("first line of it\n1 failed", 1), says("2 passed", 0))),
    ]
    results = runner.run(groups, tmp_path, runner.show)
    assert {result.group.name: result.passed for result in results} == {"good": True, "empty": True, "bad": False}
    said = capsys.readouterr().out
    assert "first line of it" in said and "first line\n" not in said
    assert "good: 1 passed" in said and "FAILED" in said and said.count("passed  ") == 2
    assert (tmp_path / "good.log").read_text() == "first line\n1 passed\n"


@pytest.mark.parametrize(("status", "expected"), [(0, 0), (1, 1), (2, 1)])
def test_the_exit_status_tells(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: int, expected: int
) -> None:
    monkeypatch.setattr(runner, "lint", lambda: runner.Group("lint", 1, (says("lint", status),)))
    monkeypatch.setattr(runner, "find_folders", lambda release: [])
    monkeypatch.setattr(runner, "LOGS", tmp_path)
    assert runner.main([]) == expected


@pytest.mark.parametrize(("arguments", "release"), [([], False), (["--check"], False), (["--release"], True)])
def test_long_files_are_groups_for_a_release_alone(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], release: bool
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(runner, "lint", lambda: runner.Group("lint", 1, (says("lint", 0),)))
    monkeypatch.setattr(runner, "find_folders", lambda release: asked.append(release) or [])
    monkeypatch.setattr(runner, "LOGS", tmp_path)
    assert runner.main(arguments) == 0 and asked == [release]


@pytest.mark.parametrize(
    ("statuses", "expected"), [((0, 5), 0), ((5, 0), 0), ((5, 5), 5), ((1, 0), 1), ((0, 1), 1), ((5, 2), 2)]
)
def test_arguments_go_to_pytest(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, statuses: tuple[int, int], expected: int
) -> None:
    given, left = [], list(statuses)

    def run(command: tuple[str, ...], **_: object) -> object:
        given.append(command[3:])
        return type("Done", (), {"returncode": left.pop(0)})

    monkeypatch.setattr(runner.subprocess, "run", run)
    assert runner.main(["-k", "scheduler"]) == expected
    assert given == [("-k", "scheduler"), ("--on-shares", "-k", "scheduler")]


def test_many_small_files_are_one_group_with_a_log(runner: ModuleType, tmp_path: Path) -> None:
    name = " ".join(f"test_{number}.py" for number in range(100))
    assert runner.run_group(runner.Group(name, 1, ((sys.executable, "-c", ""),)), tmp_path).passed


FAILS_AT_FIRST = """
import pathlib
def test_good(): pass
def test_bad(): assert {always}
def test_unstable():
    marker = pathlib.Path(__file__).with_name("ran")
    ran = marker.exists()
    marker.touch()
    assert ran
"""


@pytest.mark.parametrize(("always", "most", "passes"), [("True", 1, True), ("True", 0, False), ("False", 2, False)])
def test_few_tests_that_failed_run_once_more_alone(
    runner: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    always: str,
    most: int,
    passes: bool,
) -> None:
    """One that fails again fails; so do many, and what is no test's failure."""
    (tmp_path / "test_it.py").write_text(FAILS_AT_FIRST.format(always=always))
    monkeypatch.setattr(runner, "MOST_UNSTABLE", most)
    command = (sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path), str(tmp_path / "test_it.py"))
    [result] = runner.run([runner.Group("one", 1, (command,))], tmp_path / "logs", id)
    assert not result.passed
    asked: list[object] = []
    relative = [replace(result, failed_tests=tuple(f"{tmp_path}/{test}" for test in result.failed_tests))]
    monkeypatch.setattr(runner, "_without_paths", lambda command: command[:-1])
    assert runner.passes_alone(relative[0], tmp_path / "logs", asked.append) is passes
    assert len(asked) == bool(most) and ("UNSTABLE" in capsys.readouterr().out) is passes


def test_a_group_that_ends_otherwise_is_not_run_again(runner: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("import nothing_there")
    for command in (
        (sys.executable, "-m", "pytest", "-q", str(tmp_path)),
        (sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"),
        says("1 failed", 1),
    ):
        [result] = runner.run([runner.Group("one", 1, (command,))], tmp_path / "logs", id)
        assert not result.passed and not runner.passes_alone(result, tmp_path / "logs", print)
