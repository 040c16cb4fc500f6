"""What the command-line tests share: a runner, and a command that answers as a shell would see it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from typer.testing import CliRunner, Result

from cloister.cli import app

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `cloister` with these arguments, without the environment's key."""
    monkeypatch.delenv("CLOISTER_API_KEY", raising=False)
    monkeypatch.setenv("TERMINAL_WIDTH", "120")

    def command(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, list(arguments), input=stdin)

    return command
