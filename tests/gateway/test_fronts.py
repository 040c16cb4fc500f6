"""deploy/nginx.conf and deploy/Caddyfile before a server: streams pass as they come, limits and headers as they are."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from tests.certificates import write_pair
from tests.gateway.fakes import KEY, FakeBackend, chat_body

DEPLOY = Path(__file__).parents[2] / "deploy"
PROGRAMS = {
    "nginx": shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/bin"),
    "caddy": shutil.which("caddy"),
}
CHAT = "/v1/chat/completions"
CANARY = "heliotrope"

HTTP = """
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log {folder}/errors;
events {{ worker_connections 64; }}
http {{
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/site;
}}
"""


def replaced(name: str, words: dict[str, str]) -> str:
    """The file as it is, but for addresses and paths of this test."""
    text = (DEPLOY / name).read_text()
    for word, by in words.items():
        assert text.count(word) == 1, word
        text = text.replace(word, by)
    return text


def nginx(folder: Path, node: str, port: int, cert: Path, key: Path) -> list[str]:
    words = {"127.0.0.1:8000": node, "listen 443": f"listen 127.0.0.1:{port}", "/var/log/nginx": str(folder)}
    words |= {"/etc/cloister/tls/chain.pem": str(cert), "/etc/cloister/tls/key.pem": str(key)}
    (folder / "site").write_text(replaced("nginx.conf", words))
    (folder / "conf").write_text(HTTP.format(folder=folder))
    return ["-p", str(folder), "-c", str(folder / "conf")]


def caddy(folder: Path, node: str, port: int, cert: Path, key: Path) -> list[str]:
    here = f"https://127.0.0.1:{port} {{\n\ttls {cert} {key}"
    words = {"127.0.0.1:8000": node, "node.example {": here, "admin off": "admin off\n\tauto_https disable_redirects"}
    (folder / "conf").write_text(replaced("Caddyfile", words))
    return ["run", "--adapter", "caddyfile", "--config", str(folder / "conf")]


FRONTS: dict[str, Callable[[Path, str, int, Path, Path], list[str]]] = {"nginx": nginx, "caddy": caddy}


@contextmanager
def front(name: str, folder: Path, node: str) -> Iterator[httpx.Client]:
    """The program with our file; a client that trusts its certificate."""
    if (program := PROGRAMS[name]) is None:
        pytest.skip(f"{name} is not installed (Debian: {'nginx-light' if name == 'nginx' else name})")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    pair = write_pair(folder)
    assert pair.tls_cert and pair.tls_key
    words = FRONTS[name](folder, node.removeprefix("http://"), port, pair.tls_cert, pair.tls_key)
    given = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen([program, *words], stdout=said, stderr=said, env=given)
    try:
        for _ in range(1000):
            with socket.socket() as trial:
                if not trial.connect_ex(("127.0.0.1", port)):
                    break
            assert process.poll() is None, (folder / "said").read_text()
            time.sleep(0.02)
        trusted = ssl.create_default_context(cafile=str(pair.tls_cert))
        with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=trusted, headers=KEY, timeout=60) as client:
            yield client
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.parametrize("name", FRONTS)
def test_a_front_passes_on_what_the_node_says_as_it_says_it(
    name: str, url: str, backend: FakeBackend, tmp_path: Path
) -> None:
    with front(name, tmp_path, url) as client:
        assert client.get("/health").status_code == 200
        a_stream_comes_word_by_word(client, backend)
        a_request_in_chunks_passes(client)
        the_nodes_refusals_and_headers_pass(client)
        who_leaves_ends_the_answer(client, backend)
        if name == "nginx":  # Caddy counts while the node reads, and the node looks first
            huge = client.post("/v1/sealed", content=b"x" * ((16 << 20) + 1))
            assert huge.status_code == 413 and huge.headers["content-type"] == "text/html"
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert CANARY.encode() not in path.read_bytes(), path


def a_stream_comes_word_by_word(client: httpx.Client, backend: FakeBackend) -> None:
    backend.pause = 0.1
    asked = {**chat_body(stream=True), "messages": [{"role": "user", "content": CANARY}]}
    with client.stream("POST", CHAT, json=asked) as answer:
        assert answer.status_code == 200 and answer.headers["x-request-id"].startswith("req_")
        running = [backend.open for _ in answer.iter_lines()]
    assert running.count(1) > 10, "words came while the node still spoke"
    backend.pause = 0


def a_request_in_chunks_passes(client: httpx.Client) -> None:
    body = json.dumps(chat_body()).encode()
    parts = iter([body[:9], body[9:]])
    answer = client.post(CHAT, content=parts, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200


def the_nodes_refusals_and_headers_pass(client: httpx.Client) -> None:
    strange = client.post(CHAT, json=chat_body(), headers={"X-Cloister-Nonsense": "1"})
    assert strange.status_code == 400 and "x-cloister-nonsense" in strange.text.lower()
    none = client.get("/v1/models", headers={"Authorization": "Bearer wrong"})
    assert none.status_code == 401 and none.headers["www-authenticate"] == "Bearer"
    plain = client.post(CHAT, content=b"x" * (1 << 17), headers={"Content-Type": "application/json"})
    assert plain.status_code == 413 and plain.json()["error"]["code"] == "body_too_large", "the node's limit"


def who_leaves_ends_the_answer(client: httpx.Client, backend: FakeBackend) -> None:
    backend.pause, backend.ends = 0.05, False
    with client.stream("POST", CHAT, json={**chat_body(stream=True), "max_tokens": 1000}) as answer:
        lines = answer.iter_lines()
        while not backend.open:
            next(lines)
    for _ in range(200):
        if not backend.open:
            break
        time.sleep(0.05)
    assert not backend.open and backend.cancelled


def test_the_files_name_no_other_node(app: FastAPI) -> None:
    """Several nodes behind one address are another matter: no request may be sent to a second one by itself."""
    assert (DEPLOY / "nginx.conf").read_text().count("    server 127") == 1
    assert "proxy_next_upstream off" in (DEPLOY / "nginx.conf").read_text()
    assert "lb_" not in (DEPLOY / "Caddyfile").read_text()
