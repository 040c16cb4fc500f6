import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer

from cloister import __version__
from cloister.cli import app
from tests.cli.conftest import Run


@pytest.mark.parametrize("words", ["version", "--version", "-V"])
def test_the_version_is_the_packages(run: Run, words: str) -> None:
    result = run(words)
    assert (result.exit_code, result.stdout) == (0, f"cloister {__version__}\n")


@pytest.mark.parametrize("command", ["serve", "chat", "bench peers", "key new"])
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


def commands(group: click.Command, *words: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    inner = getattr(group, "commands", {})
    for name, one in inner.items():
        yield from commands(one, *words, name)
    if not inner:
        yield words, group


def test_no_command_takes_a_secret_as_an_argument() -> None:
    """Other users of the machine can read them. A key that others may know (`vkey`, `signed`) is none."""
    taken = {
        (*words, param.name)
        for words, command in commands(typer.main.get_command(app))
        for param in command.params
        if re.search("api_key|secret|token$|password|passphrase|bearer", param.name or "")
        and not (param.is_flag if isinstance(param, click.Option) else False)
        and (param.name or "").rpartition("_")[2] not in ("file", "out")
    }
    assert not taken


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


IMPORTING = """
import os, signal, sys
import cloister.__main__
assert not {"cloister.cli", "typer", "pydantic", "rich"} & set(sys.modules), "the entry imports what is heavy"

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "cloister.config":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
sys.argv = ["cloister", "version"]
cloister.__main__.main()
"""


def test_an_interrupt_while_code_is_imported_is_one_quiet_line() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTING], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Stopped.\n")


def test_an_interrupt_that_is_to_be_ignored_is_ignored_while_code_is_imported() -> None:
    """As a shell has it for what runs in the background."""
    ignoring = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n{IMPORTING}"
    done = subprocess.run([sys.executable, "-c", ignoring], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"cloister {__version__}\n", "")


def test_the_installed_command_begins_where_the_module_does() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"cloister": "cloister.__main__:main"}


def test_an_interrupt_of_a_command_is_one_quiet_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cloister.models.source.known_models", interrupted)
    result = run("models")
    assert (result.exit_code, result.stderr) == (130, "Stopped.\n")
