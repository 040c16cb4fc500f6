"""`cloister issuer` and `cloister cloud`: a list that a node follows, in the log, as `cloister verify` shows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cloister.access.cloud import Cloud, load_cloud
from cloister.client.tokens import TokenSource
from cloister.config import DEVELOPMENT_KEY
from cloister.transparency.note import SigningKey
from tests.access.vectors import CHALLENGE, SIGNER
from tests.attest.statements import SETTINGS
from tests.cli.conftest import Run
from tests.client.fake_node import FakeNode, release_in, running
from tests.served import Command

NODE = "here=http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOISTER_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("CLOISTER_DATA", str(tmp_path / "data"))


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    from cloister.access.token_keys import TokenKey, TokenKeys

    path = tmp_path / "directory.json"
    path.write_bytes(TokenKeys(CHALLENGE.issuer, "/token-request", [TokenKey(SIGNER.public, 0, 1 << 40)]).encode())
    return path


@pytest.fixture
def log_key(tmp_path: Path) -> tuple[Path, SigningKey]:
    key = SigningKey.generate("development/test")
    path = tmp_path / "log.key"
    path.write_text(key.private_text() + "\n")
    path.chmod(0o600)
    return path, key


@pytest.fixture
def node(tmp_path: Path, log_key: tuple[Path, SigningKey]) -> Iterator[FakeNode]:
    with running(FakeNode(release_in(tmp_path / "log", key=log_key[1]))) as node:
        yield node


def made(run: Run, keys: Path, out: Path, *nodes: str) -> Cloud:
    words = [word for node in nodes for word in ("--node", node)]
    result = run("cloud", "make", "--issuer", str(keys), *words, "--out", str(out))
    assert result.exit_code == 0, result.output
    assert load_cloud(out).digest.hex() in result.stdout
    return load_cloud(out)


@pytest.mark.parametrize(
    "command", [("issuer",), ("cloud", "make"), ("cloud", "publish"), ("cloud", "announce"), ("up",)]
)
def test_the_help_has_examples(run: Run, command: tuple[str, ...]) -> None:
    result = run(*command, "--help")
    assert result.exit_code == 0 and "Example" in result.stdout and f"cloister {' '.join(command)}" in result.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("issuer", "--per-day", "0"),
        ("issuer", "--url", "nonsense"),
        ("issuer", "--host", "0.0.0.0"),
        ("issuer", "--folder", "/dev/null/there"),
        ("cloud", "make", "--issuer", "nowhere.json", "--node", NODE, "--out", "cloud.json"),
        ("cloud", "make", "--issuer", "http://127.0.0.1:9", "--node", NODE, "--out", "cloud.json"),
        ("cloud", "make", "--issuer", "http://127.0.0.1:9", "--node", "here", "--out", "cloud.json"),
        ("up", "--issuer", "--port", "0"),
        ("proxy", "http://127.0.0.1:9", "--issuer", "http://127.0.0.1:9"),
        ("chat", "hello", "--issuer", "http://127.0.0.1:9"),
        ("chat", "hello", "--issuer", "http://127.0.0.1:9", "--insecure-plaintext"),
    ],
)
def test_wrong_use_is_an_error_with_no_traceback(run: Run, words: tuple[str, ...]) -> None:
    result = run(*words)
    assert result.exit_code in (1, 2) and "Error" in result.stderr and "Traceback" not in result.output


def test_an_issuer_starts_and_a_wallet_is_filled_there(run: Run, tmp_path: Path) -> None:
    command = Command(tmp_path / "said", "issuer", "--port", "0", "--folder", str(tmp_path / "i"), "--per-day", "64")
    try:
        url = command.wait_for(r"Keys +(http://[^/]+)/", 60)
        result = run("cloud", "make", "--issuer", url, "--node", NODE, "--out", str(tmp_path / "cloud.json"))
        assert result.exit_code == 0, result.output
        source = TokenSource(load_cloud(tmp_path / "cloud.json"), url, DEVELOPMENT_KEY, tmp_path / "wallet.json")
        assert source.begin() == 64 and source.take()[1].name == "here"
    finally:
        status = command.stop()
    assert status == 0 and DEVELOPMENT_KEY not in command.said


def test_a_node_that_follows_an_older_list_than_the_logs_newest_fails(
    run: Run, node: FakeNode, keys: Path, log_key: tuple[Path, SigningKey], tmp_path: Path
) -> None:
    verify = ("verify", node.url, "--allow-software-tee")
    assert "cloud list" in run(*verify).stdout and "takes no anonymous tokens" in run(*verify).stdout
    first = made(run, keys, tmp_path / "one.json", NODE)
    second = made(run, keys, tmp_path / "two.json", NODE, "other=http://127.0.0.1:10")
    publish = ("cloud", "publish", str(tmp_path / "log"))
    assert run(*publish, str(tmp_path / "one.json"), "--key", str(log_key[0])).exit_code == 0
    node.settings = msgspec.structs.replace(SETTINGS, cloud=first.digest.hex())
    followed = run(*verify, "--json")
    assert followed.exit_code == 0 and json.loads(followed.stdout)["claims"]["cloud"] == first.digest.hex()
    assert "takes no anonymous tokens" not in run(*verify).stdout
    policy = tmp_path / "policy.toml"
    policy.write_text(f'[settings]\nhashes = ["{node.settings.hash.hex()}"]\n')
    assert run(*verify, "--policy", str(policy)).exit_code == 0
    node.settings = msgspec.structs.replace(SETTINGS, cloud=second.digest.hex())
    assert "settings hash" in run(*verify, "--policy", str(policy)).stdout
    assert run(*verify, "--policy", str(policy)).exit_code == 1
    assert run(*verify).exit_code == 1  # not in the log
    assert run(*publish, str(tmp_path / "two.json"), "--key", str(log_key[0])).exit_code == 0
    assert run(*verify).exit_code == 0
    node.settings = msgspec.structs.replace(SETTINGS, cloud=first.digest.hex())
    assert "newer list" in run(*verify).stdout


def test_the_log_names_the_process_that_a_node_is_and_another_fails(
    run: Run, node: FakeNode, log_key: tuple[Path, SigningKey], tmp_path: Path
) -> None:
    verify = ("verify", node.url, "--allow-software-tee")
    announce = ("cloud", "announce", str(tmp_path / "log"), node.url, "--key", str(log_key[0]))
    assert "names no process" in run(*verify).stdout
    assert run(*announce).exit_code == 1, "real hardware is asked for"
    assert node.instance.hex() in run(*announce, "--allow-software-tee").stdout
    assert json.loads(run(*verify, "--json").stdout)["claims"]["instance"] == node.instance.hex()
    node.restart()
    failed = run(*verify)
    assert failed.exit_code == 1 and "another process" in failed.stdout
    node.missing_layers = ("seccomp",)
    assert run(*announce, "--allow-software-tee").exit_code == 1, "only verified nodes are named"
    node.missing_layers = ()
    assert run(*announce, "--allow-software-tee").exit_code == 0 and run(*verify).exit_code == 0


def test_a_list_that_names_a_node_twice_is_not_written(run: Run, keys: Path, tmp_path: Path) -> None:
    out = tmp_path / "cloud.json"
    words = ("--node", NODE, "--node", "here=http://127.0.0.1:10", "--out", str(out))
    result = run("cloud", "make", "--issuer", str(keys), *words)
    assert result.exit_code == 1 and not out.exists()
