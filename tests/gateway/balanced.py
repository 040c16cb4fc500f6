"""Gateways over fake backends behind a stock balancer that runs deploy/'s file, but for ports."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from fastapi import FastAPI

from cloister.config import GatewaySettings
from cloister.gateway.app import create_app
from tests.gateway.fakes import MODEL, ByteTokenizer, FakeBackend, served

DEPLOY = Path(__file__).parents[2] / "deploy" / "balancer"
SYSTEM = "/usr/sbin:/usr/local/sbin:/usr/bin:/bin"
NODES = ("one", "two", "three")


@dataclass
class Node:
    name: str
    app: FastAPI
    backend: FakeBackend
    address: str = ""

    def drain(self) -> None:
        self.app.state.drain.begin(lambda: None)


def node(name: str) -> Node:
    backend = FakeBackend()
    backend.answer, backend.pause = f"I am node {name}, and I speak for a while.", 0
    return Node(name, create_app(backend, ByteTokenizer(), MODEL, GatewaySettings(), created=1), backend)


@contextmanager
def serving(nodes: list[Node]) -> Iterator[None]:
    with ExitStack() as stack:
        for each in nodes:
            each.address = stack.enter_context(served(each.app)).removeprefix("http://")
        yield


def configuration(file: str, nodes: list[Node], port: int) -> str:
    text = (DEPLOY / file).read_text()
    for number, each in enumerate(nodes, 1):
        text, found = re.subn(rf"10\.0\.0\.1{number}:8000", each.address, text)
        assert found == 1
    text, found = re.subn(r"(?m)^(\s*(?:listen|bind)) :?8080", rf"\1 127.0.0.1:{port}", text)
    assert found == 1
    return text


def program(name: str) -> str | None:
    return shutil.which(name, path=SYSTEM)


def command(name: str, folder: Path, file: Path) -> list[str]:
    found = program(name)
    assert found
    if name == "haproxy":
        return [found, "-db", "-f", str(file)]
    paths = " ".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    text = file.read_text().replace("http {", f"http {{ {paths}", 1)
    file.write_text(f"daemon off; pid {folder}/pid; error_log {folder}/errors;\n{text}")
    return [found, "-p", str(folder), "-c", str(file)]


@contextmanager
def balanced(name: str, folder: Path, nodes: list[Node]) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    file = folder / "configuration"
    file.write_text(configuration({"haproxy": "haproxy.cfg", "nginx": "nginx.conf"}[name], nodes, port))
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(command(name, folder, file), stdout=output, stderr=output)
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(500):
            assert process.poll() is None, (folder / "output").read_text()
            try:
                if httpx.get(f"{url}/ready").status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.02)
        else:
            raise AssertionError("The balancer did not become ready.")
        yield url
    finally:
        process.terminate()
        process.wait(20)
