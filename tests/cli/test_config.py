"""`cloister config`: a file with every option, and which of file, environment and command line counts."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import BaseModel
from typer.testing import CliRunner

from cloister.cli.config_file import name_of
from cloister.cli.options import settings_command
from cloister.cli.settings_option import options_of
from cloister.config import Settings, option
from cloister.errors import SetupError
from tests.cli.conftest import Run


class _Small(BaseModel):
    port: int = option(1, "A port.", ge=0, le=9)
    keys: Path | None = option(None, "A file.")
    detector: bool = option(False, "Whether.", command_default=True)


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """What a small command gets of a file with this text, these arguments and this environment."""
    got: list[_Small] = []
    app = typer.Typer()

    @app.command(context_settings={"auto_envvar_prefix": "CLOISTER_SERVE"})
    @settings_command(_Small, config_file=True)
    def small(given: _Small) -> None:
        got.append(given)

    def command(text: str, *arguments: str, **environment: str) -> _Small:
        file = tmp_path / "c.toml"
        file.write_text(text)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        result = CliRunner().invoke(app, ["--config", str(file), *arguments])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return got.pop()

    return command


def test_the_command_line_goes_before_the_environment_and_that_before_the_file(settings: Callable[..., Any]) -> None:
    assert settings("port = 2\ndetector = false").port == 2
    assert settings("port = 2", "--port", "3").port == 3
    assert settings("port = 2", "--port", "1").port == 1, "given as the default is given"
    assert settings("port = 2", CLOISTER_SERVE_PORT="4").port == 4
    assert settings("port = 2", "--port", "5", CLOISTER_SERVE_PORT="4").port == 5
    assert not settings("detector = false").detector and settings("").detector


def test_files_are_looked_for_beside_it(settings: Callable[..., Any], tmp_path: Path) -> None:
    assert settings('keys = "k.toml"').keys == tmp_path / "k.toml"
    assert settings('keys = "/etc/k.toml"').keys == Path("/etc/k.toml")


def test_a_misspelt_option_is_an_error(settings: Callable[..., Any]) -> None:
    with pytest.raises(SetupError, match=r"no option 'prot'.*Is it 'port'"):
        settings("prot = 2")
    with pytest.raises(SetupError, match="not valid TOML"):
        settings("port == 2")


def test_what_is_printed_has_every_option_and_is_a_file(run: Run, tmp_path: Path) -> None:
    printed = run("config").stdout
    assert tomllib.loads(printed) == {}
    given = [line.removeprefix("# ") for line in printed.splitlines() if " = " in line and "not set" not in line]
    names = {name_of(each) for each in options_of(Settings)}
    assert {line.split(" = ")[0].removeprefix("# ") for line in printed.splitlines() if " = " in line} >= names
    file = tmp_path / "cloister.toml"
    file.write_text("\n".join(line for line in given if line.split(" = ")[0] in names))
    checked = run("config", str(file))
    assert checked.exit_code == 0 and "port = 8000" in checked.stdout
    file.write_text("port = 99999")
    assert run("config", str(file)).exit_code == 2
