"""Nodes that are watched, started again and replaced one by one, with programs that answer as a node does."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from cloister.errors import SetupError, VerificationFailed
from cloister.local_cloud import nodes as nodes_module
from cloister.local_cloud.cloud import Plan, _ports
from cloister.local_cloud.nodes import LocalNode, LocalNodes, State

NODE = '''
import http.server, signal, sys
METRICS = """cloister_running 1.0
cloister_requests_total{route="/v1/sealed",status="2xx"} 5.0
cloister_requests_total{route="/v1/sealed",status="5xx"} 9.0
cloister_requests_total{route="/v1/completions",status="2xx"} 2.0
cloister_requests_total{route="/ready",status="2xx"} 70.0
"""
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        allowed = self.headers.get("Authorization") == "Bearer key"
        body = b"{}" if self.path == "/ready" else METRICS.encode() if allowed else b"no"
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Answers).serve_forever()
'''


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes_module, "LOOK_S", 0.05)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[LocalNodes]:
    verified: list[str] = []
    ports = _ports(Plan(tmp_path, nodes=3, port=0, proxy_port=0, issuer_port=0))
    made = [node(tmp_path, f"node-{at}", NODE, port) for at, port in enumerate(ports)]
    nodes = LocalNodes(made, verified.append)
    nodes.verified = verified  # type: ignore[attr-defined]
    yield nodes
    nodes.end()


def node(folder: Path, name: str, program: str, port: int = 9) -> LocalNode:
    words = [sys.executable, "-c", program, str(port)]
    return LocalNode(name, f"http://127.0.0.1:{port}", words, os.environ, folder / f"{name}.log", "key")


def until(true: Callable[[], bool], step: Callable[[], object]) -> None:
    end = time.monotonic() + 120
    while not true():
        step()
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.01)


def are_ready(nodes: LocalNodes) -> bool:
    return all(each.state is State.READY for each in nodes.nodes)


def test_a_node_that_ends_is_verified_and_started_again_and_its_answers_are_counted_on(nodes: LocalNodes) -> None:
    nodes.start()
    until(nodes.are_ready, lambda: None)
    assert sorted(nodes.verified) == sorted(each.url for each in nodes.nodes)  # type: ignore[attr-defined]
    hit = nodes.nodes[1]
    until(lambda: hit.answered == 7, nodes.step)
    assert hit.running == 1 and hit._process is not None
    hit._process.kill()
    until(lambda: hit.restarts == 1, nodes.step)
    until(lambda: are_ready(nodes) and hit.answered == 14, nodes.step)
    assert [each.restarts for each in nodes.nodes] == [0, 1, 0]
    assert nodes.verified.count(hit.url) == 2  # type: ignore[attr-defined]


def test_all_are_replaced_one_by_one(nodes: LocalNodes) -> None:
    nodes.start()
    until(nodes.are_ready, lambda: None)
    nodes.roll()
    order: list[str] = []

    def step() -> None:
        nodes.step()
        nodes.roll()  # asked again while it goes on: nothing more
        away = [each.name for each in nodes.nodes if each.state is not State.READY]
        assert len(away) <= 1
        order.extend(name for name in away if name not in order)

    until(lambda: sum(each.restarts for each in nodes.nodes) == 3 and are_ready(nodes), step)
    assert order == ["node-0", "node-1", "node-2"] and [each.restarts for each in nodes.nodes] == [1, 1, 1]


def test_a_node_that_does_not_start_or_verify_stops_the_start(
    tmp_path: Path, nodes: LocalNodes, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = LocalNodes([node(tmp_path, "node-9", "print('last words'); raise SystemExit(2)")], lambda url: None)
    broken.start()
    with pytest.raises(SetupError, match="node-9 ended before it was ready"):
        until(broken.are_ready, lambda: None)
    assert "last words" in capfd.readouterr().err

    def refuse(url: str) -> None:
        raise VerificationFailed("no")

    nodes._verify = refuse
    nodes.start()
    with pytest.raises(VerificationFailed):
        until(nodes.are_ready, lambda: None)


def test_one_that_ends_at_once_again_and_again_waits_ever_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, starts = [0.0], list[float]()
    monkeypatch.setattr(nodes_module, "monotonic", lambda: now[0])
    made = node(tmp_path, "node-0", "pass")
    monkeypatch.setattr(LocalNode, "ended", True)
    begun = made.start
    monkeypatch.setattr(made, "start", lambda: (starts.append(now[0]), begun()))
    made.start()
    for _ in range(120):
        made.keep()
        now[0] += 1
    made._process.kill()  # type: ignore[union-attr]
    assert starts[:5] == [0, 1, 5, 13, 29]
    assert max(after - before for before, after in pairwise(starts)) <= 31


def test_ports_of_nodes_are_free_and_no_other_parts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        first = taken.getsockname()[1]
        plan = Plan(tmp_path, nodes=3, port=first, proxy_port=first + 1, issuer_port=first + 2, relay_port=first + 3)
        found = _ports(plan)
    assert len(set(found)) == 3 and not {first + step for step in range(4)} & set(found)
