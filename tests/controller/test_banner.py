"""What a server says when it is ready can be typed as it is shown."""

from __future__ import annotations

import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from cloister.config import ControllerSettings, GatewaySettings, Settings
from cloister.controller.startup import about_sharing, command_as_typed, say_ready, say_where_vaults_live
from cloister.errors import VaultLost
from tests.controller.fakes import SERVING


def installation(folder: Path) -> Path:
    (folder / "bin").mkdir(parents=True)
    for name in ("python", "cloister"):
        (folder / "bin" / name).write_text("#!/bin/sh\necho it runs\n")
        (folder / "bin" / name).chmod(0o755)
    return folder / "bin"


def test_the_command_is_found_as_it_is_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, other = installation(tmp_path / "my checkout" / ".venv"), installation(tmp_path / "other")
    monkeypatch.setattr(sys, "executable", str(ours / "python"))
    monkeypatch.chdir(tmp_path / "my checkout")
    shown = {}
    for path in (str(ours), str(other), "/usr/bin"):
        monkeypatch.setenv("PATH", f"{path}:/usr/bin")
        shown[path] = command_as_typed()
        ran = subprocess.run(["/bin/sh", "-c", shown[path]], capture_output=True, text=True, check=True)
        assert ran.stdout == "it runs\n"
    assert list(shown.values()) == ["cloister", ".venv/bin/cloister", ".venv/bin/cloister"]
    monkeypatch.chdir(tmp_path)
    assert command_as_typed() == "'my checkout/.venv/bin/cloister'"
    (ours / "cloister").unlink()
    assert command_as_typed().endswith("python' -m cloister")


def test_names_are_shown_as_they_are() -> None:
    console = Console(file=StringIO(), width=200)
    serving = replace(SERVING, missing_layers=("memory_lock",))
    say_ready(console, "http://127.0.0.1:9000", "[red]m", serving, Settings(), "none", 1.0)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "ulimit -l unlimited" in said
    assert "serves [red]m" in said and "chat --url http://127.0.0.1:9000 --allow-software-tee" in said


def test_it_says_how_its_keys_are_read_again() -> None:
    console = Console(file=StringIO(), width=200)
    settings = Settings(gateway=GatewaySettings(keys_file=Path("keys.toml")))
    say_ready(console, "http://127.0.0.1:9000", "m", SERVING, settings, "none", 1.0)
    keys = Path("keys.toml").absolute()
    assert f"Keys: {keys}. `kill -HUP {os.getpid()}`" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_vault_host_that_cannot_be_used_is_named() -> None:
    console = Console(file=StringIO(), width=200)
    settings = Settings(controller=ControllerSettings(vault_host="10.0.0.2:7000", vault_host_key=Path("k")))
    say_where_vaults_live(console, settings, VaultLost("The vault host at 10.0.0.2:7000 cannot be reached: [x]."))
    say_where_vaults_live(console, settings, None)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "cannot be reached: [x]. Requests that need one get 503" in said and "which answers" in said


def test_the_attackers_bound_stands_beside_the_settings() -> None:
    said = about_sharing(ControllerSettings())
    assert said is not None and "more than 12 accounts" in said and "2e-05 / 1e-03 / 9e-03 for 1 / 5 / 7" in said
    assert about_sharing(ControllerSettings(shared_policy="registered")) is None
