"""`cloister weights`: what a provider does, from two new keys to a node that has one of them."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cloister.channel.envelope import CONTENT_TYPE, receive_release
from cloister.channel.sealing import ChannelKey
from cloister.errors import CloisterError
from cloister.sealed_weights.file import read_content_key
from tests.cli.conftest import Run
from tests.client.fake_node import FakeNode, release_in, running
from tests.client.http_server import Received, Reply, reply


@pytest.fixture
def keys(run: Run, tmp_path: Path) -> list[str]:
    """The provider's verifier key, and the options that name its secret keys."""
    content, signing = tmp_path / "content.key", tmp_path / "sign.key"
    made = run("weights", "key", "--key", str(content), "--sign-key", str(signing), "--name", "example.com/weights")
    assert made.exit_code == 0, made.output
    return [made.stdout.strip(), "--key", str(content), "--sign-key", str(signing)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "a-model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model.safetensors").write_bytes(b"a very secret weight" * 1000)
    (folder / "notes.md").write_text("not part of the model")
    return folder


@pytest.fixture
def sealed(run: Run, keys: list[str], model: Path, tmp_path: Path) -> Path:
    out = tmp_path / "model.sealed"
    result = run("weights", "seal", "--model", str(model), "--out", str(out), *keys[1:], "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["model"] == "a-model" and told["files"] == ["config.json", "model.safetensors"]
    assert told["provider_key"] == keys[0]
    return out


def test_the_way_there_and_back(run: Run, keys: list[str], model: Path, sealed: Path, tmp_path: Path) -> None:
    assert b"secret" not in sealed.read_bytes()
    out = tmp_path / "copy"
    result = run("weights", "unseal", str(sealed), "--out", str(out), *keys[1:3], "--provider-key", keys[0])
    assert result.exit_code == 0, result.output
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {
        name: (model / name).read_bytes() for name in ("config.json", "model.safetensors")
    }
    assert out.stat().st_mode & 0o777 == 0o700


def test_secrets_are_not_printed_and_keys_not_overwritten(run: Run, keys: list[str]) -> None:
    content, signing = Path(keys[2]), Path(keys[4])
    before = content.read_bytes(), signing.read_bytes()
    result = run("weights", "key", *keys[1:])
    assert result.exit_code == 2 and "not overwritten" in result.output
    assert (content.read_bytes(), signing.read_bytes()) == before
    for secret in (content, signing):
        assert secret.stat().st_mode & 0o777 == 0o600
        written = secret.read_text().strip().split("+", 3)[-1]  # Base64 may hold a "+", too
        assert len(written) > 40 and written not in keys[0]


def test_an_altered_file_leaves_no_folder_behind(run: Run, keys: list[str], sealed: Path, tmp_path: Path) -> None:
    data = bytearray(sealed.read_bytes())
    data[-1] ^= 1
    sealed.write_bytes(data)
    out = tmp_path / "copy"
    result = run("weights", "unseal", str(sealed), "--out", str(out), *keys[1:3], "--provider-key", keys[0])
    assert result.exit_code == 1 and "was altered" in result.output and not out.exists()


@pytest.mark.parametrize("command", ["seal", "unseal"])
def test_a_full_disk_is_answered_with_what_to_do(
    run: Run, keys: list[str], model: Path, sealed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    out = tmp_path / "out"
    monkeypatch.setattr("cloister.sealed_weights.file.written_whole", full)
    monkeypatch.setattr("cloister.sealed_weights.file.WeightsBundle.unpack", full)
    if command == "seal":
        result = run("weights", "seal", "--model", str(model), "--out", str(out), *keys[1:])
    else:
        result = run("weights", "unseal", str(sealed), "--out", str(out), *keys[1:3], "--provider-key", keys[0])
    assert result.exit_code == 2 and f"{out} cannot be written" in result.output and "Make room" in result.output
    assert not out.exists()


def test_an_existing_folder_is_left_alone(run: Run, keys: list[str], model: Path, sealed: Path) -> None:
    result = run("weights", "unseal", str(sealed), "--out", str(model), *keys[1:3], "--provider-key", keys[0])
    assert result.exit_code == 2 and "Name a new folder" in result.output and (model / "notes.md").exists()


def test_another_providers_key(run: Run, keys: list[str], sealed: Path, tmp_path: Path) -> None:
    other = run("weights", "key", "--key", str(tmp_path / "c2"), "--sign-key", str(tmp_path / "s2")).stdout.strip()
    result = run("weights", "unseal", str(sealed), "--out", str(tmp_path / "o"), *keys[1:3], "--provider-key", other)
    assert result.exit_code == 1 and "not signed by" in result.output
    result = run("weights", "unseal", str(sealed), "--out", str(tmp_path / "o"), *keys[1:3], "--provider-key", "hello")
    assert result.exit_code == 2 and "name+hash+base64" in result.output
    wrong = ("--key", str(tmp_path / "c2"), "--provider-key", keys[0])
    result = run("weights", "unseal", str(sealed), "--out", str(tmp_path / "o"), *wrong)
    assert result.exit_code == 2 and "not the one" in result.output and not (tmp_path / "o").exists()


@dataclass
class WaitingNode(FakeNode):
    """A made-up node that waits for a key."""

    expected: bytes = b""
    messages: list[bytes] = field(default_factory=list)
    held: ChannelKey | None = None
    """What it opens releases with, if not the key its evidence is bound to."""
    lie: bytes | None = None

    async def handle(self, received: Received) -> Reply:
        if not received.path.endswith("/v1/weights/key"):
            return await super().handle(received)
        self.messages.append(received.body)
        if self.lie is not None:
            return reply(200, self.lie, CONTENT_TYPE)
        try:
            key, answer = receive_release(self.held or self.channel_key, received.body)
        except CloisterError as error:
            return reply(409, json.dumps({"error": {"code": error.code}}).encode())
        if key != self.expected:
            return reply(400, b'{"error": {"code": "invalid_request"}}')
        return reply(200, answer, CONTENT_TYPE)


@pytest.fixture
def node(tmp_path: Path, keys: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[WaitingNode]:
    monkeypatch.setenv("CLOISTER_STATE", str(tmp_path / "state"))
    expected = read_content_key(Path(keys[2]))
    with running(WaitingNode(release_in(tmp_path / "log"), expected=expected)) as node:
        assert isinstance(node, WaitingNode)
        yield node


def test_a_verified_node_gets_the_key(run: Run, keys: list[str], node: WaitingNode) -> None:
    result = run("weights", "release", node.url, *keys[1:3], "--allow-software-tee", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["released"] and told["verdict"] == "pass"
    [message] = node.messages
    assert node.expected not in message


def test_a_node_that_proves_nothing_gets_nothing(run: Run, keys: list[str], node: WaitingNode) -> None:
    result = run("weights", "release", node.url, *keys[1:3])
    assert result.exit_code == 1 and "software tee" in result.output
    assert node.evidence_asked and not node.messages and not node.in_the_clear


def test_the_wrong_key_is_refused(run: Run, keys: list[str], node: WaitingNode) -> None:
    node.expected = bytes(32)
    result = run("weights", "release", node.url, *keys[1:3], "--allow-software-tee")
    assert result.exit_code == 2 and "not the key of its weights" in result.output


def test_a_key_that_is_not_bound_cannot_open_it(run: Run, keys: list[str], node: WaitingNode) -> None:
    """Who stands between and holds another key than the verified one gets a message it cannot open."""
    node.held = ChannelKey.generate()
    result = run("weights", "release", node.url, *keys[1:3], "--allow-software-tee")
    assert result.exit_code == 1 and "did not get the key" in result.output


@pytest.mark.parametrize("lie", [b"", b"taken", bytes(2000), b"x" * 100_000])
def test_nobody_else_can_say_that_it_was_taken(run: Run, keys: list[str], node: WaitingNode, lie: bytes) -> None:
    node.lie = lie
    result = run("weights", "release", node.url, *keys[1:3], "--allow-software-tee")
    assert result.exit_code == 1 and "has the key" not in result.output


def test_a_node_that_does_not_wait(run: Run, keys: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOISTER_STATE", str(tmp_path / "state"))
    with running(FakeNode(release_in(tmp_path / "log"))) as serving:
        result = run("weights", "release", serving.url, *keys[1:3], "--allow-software-tee")
    assert result.exit_code == 1 and "does not wait for a key" in result.output
