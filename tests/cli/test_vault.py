"""`cloister vault`: keys are made safely, and what is wrong is said before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cloister.cli import app
from cloister.link.network.credentials import read_secret, write_secret


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_a_new_key_is_written_and_not_shown(tmp_path: Path) -> None:
    code, output = run("vault", "key", "new", str(tmp_path / "key"))
    assert code == 0
    assert read_secret(tmp_path / "key").hex() not in output
    assert run("vault", "key", "new", str(tmp_path / "key"))[0] == 2, "an existing key is not overwritten"


@pytest.mark.parametrize(
    "command", [("vault", "serve", "--listen", "127.0.0.1:0", "--key"), ("serve", "--vault-host-key")]
)
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, command: tuple[str, ...]) -> None:
    write_secret(tmp_path / "key")
    (tmp_path / "key").chmod(0o644)
    more = ("--vault-host", "127.0.0.1:1", "--port", "0") if command[0] == "serve" else ()
    code, output = run(*command, str(tmp_path / "key"), *more)
    assert code == 2 and "Others may read" in output


@pytest.mark.parametrize("given", [("--vault-host", "127.0.0.1:1"), ("--vault-host-key", "key")])
def test_an_outpost_needs_address_and_key(given: tuple[str, ...]) -> None:
    code, output = run("serve", "--port", "0", *given)
    assert code == 2 and "--vault-host-key" in output


def test_a_wrong_address_is_refused(tmp_path: Path) -> None:
    write_secret(tmp_path / "key")
    code, output = run("vault", "serve", "--listen", "nowhere", "--key", str(tmp_path / "key"))
    assert code == 2 and "HOST:PORT" in output
