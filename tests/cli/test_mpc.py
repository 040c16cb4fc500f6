from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cloister.cli import app
from cloister.mpc.config import config_text
from cloister.mpc.local import make_local
from tests.nursery.model import save_model
from tests.served import Command

runner = CliRunner()


def test_keys_for_everyone(tmp_path: Path) -> None:
    result = runner.invoke(app, ["mpc", "keys", str(tmp_path), "--parties", "2", "--client", "ada", "--client", "bob"])
    assert result.exit_code == 0 and result.output.count("fingerprint") == 2
    names = {path.stem for path in tmp_path.glob("*.key")}
    assert names == {"ca", "party-0", "party-1", "provider", "client-ada", "client-bob"}
    again = runner.invoke(app, ["mpc", "keys", str(tmp_path)])
    assert again.exit_code == 2 and "exists already" in again.output


def test_a_client_needs_a_plain_name(tmp_path: Path) -> None:
    result = runner.invoke(app, ["mpc", "keys", str(tmp_path), "--client", "../ada"])
    assert result.exit_code == 2 and "no name for a client" in result.output


@pytest.mark.parametrize("command", [["party", "--rank", "0"], ["status"]])
def test_settings_that_are_not_there(tmp_path: Path, command: list[str]) -> None:
    result = runner.invoke(app, ["mpc", *command, "--config", str(tmp_path / "parties.toml")])
    assert result.exit_code == 2 and "cannot be read" in result.output and "cloister mpc up" in result.output


def test_a_rank_there_is_not(tmp_path: Path) -> None:
    make_local(tmp_path, "cheetah")
    result = runner.invoke(app, ["mpc", "party", "--config", str(tmp_path / "parties.toml"), "--rank", "2"])
    assert result.exit_code == 2 and "no party 2" in result.output


@pytest.mark.parametrize(("beaver", "says"), [("trusted_first_party", "every secret"), ("multi_party", "cheetah")])
def test_semi2k_without_a_safe_setting_is_refused(tmp_path: Path, beaver: str, says: str) -> None:
    config = make_local(tmp_path, "semi2k", beaver=beaver)  # type: ignore[arg-type]
    assert beaver in config_text(config)
    for command in (
        ["party", "--rank", "0", "--config", str(tmp_path / "parties.toml")],
        ["up", "--folder", str(tmp_path), "--protocol", "semi2k"],
    ):
        result = runner.invoke(app, ["mpc", *command])
        assert result.exit_code == 2 and says in result.output


def test_parties_that_are_not_up_are_told_by_name(tmp_path: Path) -> None:
    make_local(tmp_path, "cheetah")
    result = runner.invoke(app, ["mpc", "status", "--config", str(tmp_path / "parties.toml"), "--json"])
    parties = json.loads(result.output)["parties"]
    assert result.exit_code == 1 and [each["rank"] for each in parties] == [0, 1]
    assert not any(each["ready"] for each in parties) and "cannot be reached" in parties[1]["problem"]


def test_a_local_trio_comes_up_serves_and_goes(tmp_path: Path) -> None:
    pytest.importorskip("spu", reason="SPU is not installed: pip install '.[mpc]'")
    save_model(tmp_path / "model")
    place = tmp_path / "mpc"
    trio = Command(tmp_path / "log", "mpc", "up", "--folder", str(place), "--model", str(tmp_path / "model"))
    try:
        assert trio.wait_for(r"(\d) parties \(aby3\) serve", 240) == "3"
        result = runner.invoke(app, ["mpc", "status", "--config", str(place / "parties.toml")])
        assert result.exit_code == 0 and result.output.count("ready, ") == 3
        children = trio.children()
    finally:
        assert trio.stop() == 0
    assert children and not any(child.is_running() for child in children)
