"""A level of another distribution: when its code is imported, and which node measures it."""

from __future__ import annotations

import os
import subprocess
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from cloister.config import ControllerSettings, MpcSettings, Settings, VaultHostSettings
from cloister.controller import evidence, external_level
from cloister.controller.external_level import (
    GROUP,
    find_offer,
    installed_packages,
    load_level,
    measured_packages,
)
from cloister.errors import SetupError
from cloister.models.source import ModelFolder
from cloister.process import interpreter, release_code
from cloister.transparency.manifest import (
    Packages,
    build_manifest,
    measure_running,
    packages_beside,
    read_manifest,
    source_of_running,
)

LLAMA = ModelFolder("m", Path("."), {"model_type": "llama"})


def settings(mode: Any, *, vault_host: str | None = None, parties: Path | None = None) -> Settings:
    controls = ControllerSettings(vault_host=vault_host)
    return Settings(mpc=MpcSettings(mode=mode, parties=parties), controller=controls)


def registered(monkeypatch: pytest.MonkeyPatch, *values: str) -> None:
    found = tuple(EntryPoint("mpc", value, GROUP) for value in values)
    monkeypatch.setattr(external_level, "entry_points", lambda **_: found)


def test_where_the_distribution_is_absent_the_level_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    registered(monkeypatch)
    advice = find_offer(settings("auto"), LLAMA)
    assert isinstance(advice, str) and "cloister-mpc" in advice and "make mpc" in advice
    with pytest.raises(SetupError, match="cloister-mpc, which is not installed"):
        find_offer(settings("local"), LLAMA)
    assert installed_packages() == () and measured_packages(settings("auto")) == ()


def test_a_node_that_switches_the_level_off_imports_none_of_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    registered(monkeypatch, "cloister_mpc.does_not_exist:MpcLevel")
    assert "--mpc off" in str(find_offer(settings("off"), LLAMA))
    with pytest.raises(ModuleNotFoundError):
        find_offer(settings("auto"), LLAMA)


@pytest.mark.parametrize("value", ["planted.level:MpcLevel", "cloister_mpc_planted:MpcLevel", "cloister:MpcLevel"])
def test_an_entry_point_that_leads_elsewhere_does_not_count(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    registered(monkeypatch, value)
    with pytest.raises(SetupError, match="not installed"):
        load_level("mpc")
    assert installed_packages() == ()


def test_an_entry_point_must_name_a_level(monkeypatch: pytest.MonkeyPatch) -> None:
    registered(monkeypatch, "cloister_mpc.config:Limits")
    with pytest.raises(SetupError, match="is no level"):
        load_level("mpc")


def test_a_node_measures_the_code_that_it_may_import(tmp_path: Path) -> None:
    assert measured_packages(settings("off")) == ()
    for offering in (settings("auto"), settings("local"), settings("off", parties=tmp_path)):
        assert measured_packages(offering) == ("cloister_mpc",)


def test_a_vault_host_and_its_server_measure_the_same() -> None:
    for mode in ("off", "auto"):
        assert measured_packages(settings(mode, vault_host="10.0.0.2:7000")) == installed_packages()
    assert "mpc" not in VaultHostSettings.model_fields, "a vault host does not know what its server offers"


def test_the_release_of_a_node_covers_the_levels_code_where_it_is_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOISTER_CACHE", str(tmp_path))
    without, offering = (
        read_manifest(evidence.find_release(None, measured_packages(settings(mode))).manifest)
        for mode in ("off", "local")
    )
    assert packages_beside(without) == () and packages_beside(offering) == ("cloister_mpc",)
    assert without == measure_running() and "src/cloister_mpc/level.py" in offering.files
    assert without.files.items() < offering.files.items()


@pytest.mark.release
@pytest.mark.parametrize("also", [(), ("cloister_mpc",)])
def test_a_process_held_to_a_release_finds_a_level_that_the_release_names_and_no_other(also: tuple[str, ...]) -> None:
    """Through the entry point, without site-packages' .pth files (release_code.FLAGS)."""
    packages = Packages(release_code.installed(), {})
    manifest = build_manifest(source_of_running(), also=also, packages=packages).encoded()
    command = interpreter.python_of(manifest, "cloister", "mpc", "--help")
    note = int(command[command.index("cloister") - 1])
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LD_"))}
    done = subprocess.run(command, pass_fds=[note], env=variables, capture_output=True, text=True, timeout=120)
    os.close(note)
    assert done.returncode == (0 if also else 2), done.stderr
    assert also or "cloister_mpc/__init__.py is not of the release" in done.stderr
