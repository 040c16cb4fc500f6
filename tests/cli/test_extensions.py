"""Commands that other distributions bring."""

from __future__ import annotations

import subprocess
import sys

import pytest

import cloister.cli as extensions
from tests.cli.conftest import Run

LOADED = (
    "import sys; from typer.testing import CliRunner; from cloister.cli import app;"
    "CliRunner().invoke(app, sys.argv[1:]); print(*(name for name in sys.modules if name.startswith('cloister_')))"
)


def loaded_by(*arguments: str) -> str:
    """In a process of its own: the test's process has imported everything already."""
    done = subprocess.run([sys.executable, "-c", LOADED, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_command_of_the_product_imports_no_other_distribution() -> None:
    assert loaded_by("serve", "--help") == ""
    assert "cloister_bench.cli" in loaded_by("bench", "--help")
    assert "cloister_mpc.cli" in loaded_by("mpc", "--help")
    assert "cloister_bench.cli.plan" in loaded_by("plan", "--help")


@pytest.mark.parametrize("name", extensions.EXTENSIONS)
@pytest.mark.parametrize("words", [(), ("serve", "--users", "3"), ("--help",)])
def test_where_it_is_absent_one_line_says_what_to_install(
    run: Run, monkeypatch: pytest.MonkeyPatch, name: str, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(extensions, "entry_points", lambda **_: ())
    result = run(name, *words)
    assert result.exit_code == 2
    part = {"plan": "bench"}.get(name, name)
    assert f"cloister-{part}, which is not installed" in result.stderr
    assert f"pip install cloister-{part}" in result.stderr


def test_the_list_of_commands_names_it_either_way(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(name in run("--help").stdout for name in extensions.EXTENSIONS)
    monkeypatch.setattr(extensions, "entry_points", lambda **_: ())
    assert "Not installed" in run("--help").stdout


def test_it_runs_by_itself_and_says_failures_in_a_line() -> None:
    """Where the distribution is on the path, but no entry point names it."""
    command = [sys.executable, "-m", "cloister_bench", "peers", "--server", "http://127.0.0.1:9"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "Error:" in done.stderr and "Traceback" not in done.stderr
