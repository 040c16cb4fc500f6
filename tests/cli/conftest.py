"""What the command-line tests share: a runner, and a command that answers as a shell would see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest
import typer.testing
from typer.testing import CliRunner, Result

from cloister.cli import app

Run = Callable[..., Result]


@pytest.fixture(scope="session", autouse=True)
def commands_are_made_once() -> Iterator[None]:
    """A command line has one run; tests have hundreds, and to read all options of all commands takes longest of all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", cache(typer.main.get_command))
        yield


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `cloister` with these arguments, without the environment's key."""
    monkeypatch.delenv("CLOISTER_API_KEY", raising=False)
    monkeypatch.setenv("TERMINAL_WIDTH", "120")

    def command(*arguments: str, stdin: str | None = None, key: str = "") -> Result:
        return CliRunner(env={"CLOISTER_API_KEY": key} if key else None).invoke(app, list(arguments), input=stdin)

    return command
