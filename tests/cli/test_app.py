import subprocess
import sys

import pytest

from cloister import __version__
from tests.cli.conftest import Run


@pytest.mark.parametrize("words", ["version", "--version", "-V"])
def test_the_version_is_the_packages(run: Run, words: str) -> None:
    result = run(words)
    assert (result.exit_code, result.stdout) == (0, f"cloister {__version__}\n")


@pytest.mark.parametrize("command", ["serve", "chat", "bench serve", "key new"])
def test_every_command_explains_itself_by_example(run: Run, command: str) -> None:
    result = run(*command.split(), "--help")
    assert result.exit_code == 0
    assert f"cloister {command}" in result.stdout.split("Examples:")[1]


@pytest.mark.parametrize("group", ["", "bench", "key"])
def test_a_group_alone_shows_what_it_can_do(run: Run, group: str) -> None:
    assert "Commands" in run(*group.split()).output


def test_an_unknown_command_is_a_usage_error(run: Run) -> None:
    result = run("sing")
    assert result.exit_code == 2 and "sing" in result.output


def test_help_imports_nothing_heavy() -> None:
    """In a process of its own: the test's process has imported everything already."""
    watch = (
        "import sys; from typer.testing import CliRunner; from cloister.cli import app;"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0;"
        "heavy = {'torch', 'transformers', 'httpx', 'fastapi', 'matplotlib', 'numpy', 'uvicorn'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", watch], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "cloister", "version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"cloister {__version__}\n")
