from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cloister.cli import app
from cloister_mpc.config import config_text
from cloister_mpc.local_parties import make_local
from tests.forkserver.model import save_model
from tests.served import Command

runner = CliRunner()


def test_keys_for_everyone(tmp_path: Path) -> None:
    result = runner.invoke(app, ["mpc", "keys", str(tmp_path), "--client", "ada", "--client", "bob"])
    assert result.exit_code == 0 and result.output.count("fingerprint") == 3
    names = {path.stem for path in tmp_path.glob("*.key")}
    assert names == {"ca", "party-0", "party-1", "party-2", "provider", "client-ada", "client-bob"}
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
    make_local(tmp_path)
    result = runner.invoke(app, ["mpc", "party", "--config", str(tmp_path / "parties.toml"), "--rank", "3"])
    assert result.exit_code == 2


def test_a_protocol_that_protects_nothing_is_refused(tmp_path: Path) -> None:
    """semi2k: with this SPU, its first party could compute every secret."""
    config = make_local(tmp_path)
    (tmp_path / "parties.toml").write_text(config_text(config).replace("aby3", "semi2k"))
    for command in (
        ["party", "--rank", "0", "--config", str(tmp_path / "parties.toml")],
        ["up", "--folder", str(tmp_path)],
    ):
        assert runner.invoke(app, ["mpc", *command]).exit_code == 2


@pytest.mark.parametrize("command", ["party --rank 0 --config", "deal --config", "proxy --port 0 --parties"])
def test_what_is_not_installed_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    make_local(tmp_path)
    monkeypatch.setattr("cloister_mpc.offer.find_spec", lambda name: None if name == "jax" else object())
    result = runner.invoke(app, ["mpc", *command.split(), str(tmp_path / "parties.toml")])
    assert result.exit_code == 2 and "needs jax" in result.output and "make mpc" in result.output


def test_a_port_in_use_is_said_before_the_parties_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_local(tmp_path)
    monkeypatch.setattr("cloister_mpc.offer.find_spec", lambda name: object())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = ["mpc", "proxy", "--port", str(taken.getsockname()[1]), "--parties", str(tmp_path / "parties.toml")]
        result = runner.invoke(app, words)
    assert result.exit_code == 2 and "Cannot listen" in result.output and "Waiting" not in result.output


def test_parties_that_are_not_up_are_told_by_name(tmp_path: Path) -> None:
    make_local(tmp_path)
    result = runner.invoke(app, ["mpc", "status", "--config", str(tmp_path / "parties.toml"), "--json"])
    parties = json.loads(result.output)["parties"]
    assert result.exit_code == 1 and [each["rank"] for each in parties] == [0, 1, 2]
    assert not any(each["ready"] for each in parties) and "cannot be reached" in parties[1]["problem"]


def test_local_parties_come_up_serve_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("spu", reason="SPU is not installed: make mpc")
    save_model(tmp_path / "model", layers=1)
    place = tmp_path / "mpc"
    local = Command(tmp_path / "log", "mpc", "up", "--folder", str(place), "--model", str(tmp_path / "model"))
    try:
        assert local.wait_for(r"(\d) parties serve", 240) == "3"
        result = runner.invoke(app, ["mpc", "status", "--config", str(place / "parties.toml")])
        assert result.exit_code == 0 and result.output.count("ready, ") == 3
        assert_dealt_once(place, tmp_path, monkeypatch)
        assert_answers_through_a_proxy(place, tmp_path)
        children = local.children()
    finally:
        assert local.stop() == 0
    assert children and not any(child.is_running() for child in children)


def assert_dealt_once(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`mpc deal` finds the model there already; without the provider's key it deals nothing."""
    common = ["mpc", "deal", "--config", str(place / "parties.toml"), "--model", str(tmp_path / "model")]
    again = runner.invoke(app, common)
    assert again.exit_code == 0 and "3 parties serve model" in again.output
    from tests.cloister_mpc.local import SHAPE, weights

    monkeypatch.setattr("cloister_mpc.provider.calibration.prepare", lambda folder: (SHAPE, weights()))
    client = runner.invoke(app, [*common, "--key", str(place / "keys" / "client-clerk.key")])
    assert client.exit_code == 1 and "A client may not say this" in client.output, "a client is no provider"


def assert_answers_through_a_proxy(place: Path, tmp_path: Path) -> None:
    """`mpc proxy`: the official client gets, by shares alone, what the model says in the clear."""
    import openai

    proxy = Command(tmp_path / "proxy.log", "mpc", "proxy", "--parties", str(place / "parties.toml"),
                    "--model", str(tmp_path / "model"), "--port", "0", "--context", "64")  # fmt: skip
    try:
        url = proxy.wait_for(r"API +(http\S+)", 120)
        client = openai.OpenAI(base_url=url, api_key="cloister-dev", max_retries=0, timeout=240)
        asked = {"model": "model", "prompt": "Hi", "max_tokens": 3, "temperature": 0}
        said = "".join(part.choices[0].text for part in client.completions.create(**asked, stream=True))
        assert said == in_the_clear(tmp_path / "model", "Hi", 3)
    finally:
        assert proxy.stop() == 0


def in_the_clear(folder: Path, prompt: str, count: int) -> str:
    import torch
    from transformers import AutoModelForCausalLM

    from cloister.models.source import open_folder
    from cloister.prompts.tokenizer import Tokenizer

    tokenizer = Tokenizer(open_folder(folder, "model"))
    tokens = tokenizer.encode(prompt)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    made = model.generate(torch.tensor([tokens]), max_new_tokens=count, do_sample=False)[0, len(tokens) :]
    return tokenizer.decode(made.tolist())
