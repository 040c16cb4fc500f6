"""Namespaces for the nodes of a cloud: made, found again after a crash, and removed. Needs root and iproute2."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloister.local_cloud import network as network_module
from cloister.local_cloud.network import Network, NoNamespaces, _ip, _listed


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    made = Network(tmp_path)
    try:
        made.open(2)
    except NoNamespaces as reason:
        pytest.skip(f"no network namespaces here: {reason}")
    yield made
    made.clear()


def names(network: Network) -> set[str]:
    every = {each["name"] for each in _listed("netns", "list")} | {each["ifname"] for each in _listed("link", "show")}
    return {name for name in every if name.startswith(network._prefix)}


def listening(network: Network, number: int) -> subprocess.Popen[str]:
    program = f"import socket; s = socket.create_server(({network.host(number)!r}, 8000)); print('on', flush=True)\n"
    words = [*network.within(number), "python3", "-c", program + "while True: s.accept()[0].sendall(b'here')"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None and server.stdout.readline() == "on\n"
    return server


def said_by(network: Network, number: int) -> bytes:
    import socket

    with socket.create_connection((network.host(number), 8000), 20) as wire:
        return wire.recv(4)


def test_nodes_are_reached_by_their_own_addresses_and_end_with_their_network(network: Network, tmp_path: Path) -> None:
    assert network.host(0) != network.host(1)
    with listening(network, 0) as one, listening(network, 1) as other:
        assert said_by(network, 0) == said_by(network, 1) == b"here"
        inside = {os.readlink(f"/proc/{each.pid}/ns/net") for each in (one, other)}
        assert len(inside | {os.readlink("/proc/self/ns/net")}) == 3
        again = Network(tmp_path)  # as the next run after a crash
        assert len(names(again)) == 5
        again.open(1)
        assert one.wait(20) and other.wait(20)
        assert len(names(again)) == 3
    again.clear()
    assert not names(again)


def test_two_clouds_do_not_touch_each_other(network: Network, tmp_path: Path) -> None:
    before = names(network)
    other = Network(tmp_path / "other")
    other.open(1)
    assert other.host(0).rpartition(".")[0] != network.host(0).rpartition(".")[0]
    other.clear()
    assert names(network) == before


def test_a_range_in_use_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    network = Network(tmp_path)
    monkeypatch.setattr(network_module, "_listed", lambda *words: [{"dst": "default"}, {"dst": "10.0.0.0/8"}])
    assert str(network._free_subnet()).startswith("172.")
    everything = [{"dst": "10.0.0.0/8"}, {"dst": "172.16.0.0/12"}, {"dst": "192.168.0.0/16"}]
    monkeypatch.setattr(network_module, "_listed", lambda *words: everything)
    with pytest.raises(NoNamespaces, match="no private range"):
        network._free_subnet()


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(NoNamespaces, match="root"):
        Network(tmp_path).open(1)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoNamespaces, match="iproute2"):
        Network(tmp_path).open(1)
    (tmp_path / "ip").write_text("#!/bin/sh\nexit 2\n")
    (tmp_path / "ip").chmod(0o755)
    with pytest.raises(NoNamespaces, match=r"`ip -j route` fails here"):
        Network(tmp_path).open(1)
    with pytest.raises(NoNamespaces):
        _ip("link", "show")
