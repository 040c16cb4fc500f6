"""Where the nodes of a cloud on one machine are, and that each is verified. All of it: tests/chaos/test_cloud.py."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from cloister.access.cloud import Cloud, CloudNode
from cloister.access.token_keys import TokenKey, TokenKeys
from cloister.errors import VerificationFailed
from cloister.local_cloud.cloud import Plan, _nodes, _places, verifier_of
from cloister.local_cloud.network import Network, NoNamespaces
from cloister.local_cloud.parts import Parts
from cloister.local_cloud.view import View
from tests.access.vectors import CHALLENGE, SIGNER
from tests.client.fake_node import FakeNode, release_in, running


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return Plan(tmp_path, nodes=2, port=0, proxy_port=0, issuer_port=0, serving=("--model", "m"))


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    keys = TokenKeys(CHALLENGE.issuer, "/token-request", [TokenKey(SIGNER.public, 0, 1 << 40)])
    path = tmp_path / "cloud.json"
    path.write_bytes(Cloud((CloudNode("node-1", "http://127.0.0.1:9"),), keys).encode())
    return path


def test_without_namespaces_nodes_are_on_loopback_and_the_command_says_why(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(network: Network, nodes: int) -> None:
        raise NoNamespaces("they need root")

    monkeypatch.setattr(Network, "open", refuse)
    with ExitStack() as stack:
        places = _places(plan, stack, View(stack, as_json=False))
    said = capsys.readouterr().out
    assert "No network namespaces: they need root." in said and all(str(place.port) in said for place in places)
    assert {place.host for place in places} == {"127.0.0.1"} and len({place.port for place in places}) == 2
    assert not any(place.within for place in places)


def test_namespaces_go_when_the_cloud_ends(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[object] = []
    monkeypatch.setattr(Network, "open", lambda network, nodes: done.append(nodes))
    monkeypatch.setattr(Network, "clear", lambda network: done.append("cleared"))
    monkeypatch.setattr(Network, "host", lambda network, number: f"10.0.0.{number}")
    with ExitStack() as stack:
        places = _places(plan, stack, View(stack, as_json=False))
        assert done == [2]
    assert done == [2, "cleared"] and "10.0.0.1" in capsys.readouterr().out
    assert places[0].within[:3] == ("ip", "netns", "exec") and places[0].within != places[1].within


def test_nodes_share_a_list_and_keys_and_no_folder(plan: Plan, listed: Path) -> None:
    with ExitStack() as stack:
        nodes = _nodes(plan, _places(plan, stack, View(stack, as_json=False)), Parts(stack), listed).nodes
    commands = [" ".join(node._command) for node in nodes]
    for node, words in zip(nodes, commands, strict=True):
        assert f"--cloud {listed} --node-name {node.name} --model m" in words and "--keys" in words
        assert node._key not in words, "other users see a command's arguments"
    assert len({node._environment["CLOISTER_DATA"] for node in nodes}) == 2
    assert nodes[0]._key not in (plan.folder / "keys.toml").read_text()


def test_a_node_that_follows_another_list_is_refused(
    tmp_path: Path, listed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOISTER_STATE", str(tmp_path / "state"))
    with (
        running(FakeNode(release_in(tmp_path / "log"))) as node,
        pytest.raises(VerificationFailed, match="another list"),
    ):
        verifier_of(listed)(node.url)
