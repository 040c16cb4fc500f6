"""Stock nginx between user and relay, and between relay and node: streams pass as they come."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from cloister.channel.ohttp import CHUNKED_REQUEST_TYPE
from cloister.client.openai import Client
from cloister.transparency.proof import Release
from tests.client.fake_node import KEY, MODEL, running
from tests.client.oblivious_node import ObliviousNode, relayed

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/bin")
pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed (Debian: nginx-light)")

CONFIGURATION = """
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log {folder}/errors;
events {{ worker_connections 64; }}
http {{
    access_log {folder}/access;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        client_max_body_size 16m;
        location / {{
            proxy_pass {to};
            proxy_http_version 1.1;
            proxy_request_buffering {buffering};
            proxy_buffering {buffering};
            proxy_set_header Host $proxy_host;
            proxy_set_header Connection "";
        }}
    }}
}}
"""


@contextmanager
def nginx(folder: Path, to: str, *, buffering: bool = False) -> Iterator[str]:
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = {"folder": folder, "port": port, "to": to, "buffering": "on" if buffering else "off"}
    (folder / "conf").write_text(CONFIGURATION.format(**words))
    assert NGINX
    process = subprocess.Popen([NGINX, "-p", str(folder), "-c", str(folder / "conf")], stderr=subprocess.DEVNULL)
    try:
        for _ in range(500):
            with socket.socket() as trial:
                if not trial.connect_ex(("127.0.0.1", port)):
                    break
            assert process.poll() is None, (folder / "errors").read_text()
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture
def node(tmp_path: Path, release: Release) -> Iterator[ObliviousNode]:
    shutil.copytree(release.log_dir, tmp_path / "log")
    with running(ObliviousNode(replace(release, log_dir=tmp_path / "log"))) as node:
        assert isinstance(node, ObliviousNode)
        yield node


def test_a_stream_passes_two_nginx_as_it_comes(node: ObliviousNode, tmp_path: Path) -> None:
    node.words, node.pause_s = tuple(f"{number} " for number in range(8)), 0.25
    heard: list[int] = []
    asked = [{"role": "user", "content": "a secret"}]
    with (
        nginx(tmp_path / "inner", node.url) as inner,
        relayed(inner) as relay,
        nginx(tmp_path / "outer", relay) as url,
        Client(inner, api_key=KEY, allow_software_tee=True, relay=url, max_retries=0) as client,
    ):
        for chunk in client.chat.completions.create(model=MODEL, messages=asked, stream=True):
            if chunk.choices[0].delta.content:
                heard.append(node.said)
    assert len(heard) == 8 and heard[0] < 4, "the first word came while the node still spoke"
    logs = [path.read_text() for path in tmp_path.glob("*er/*") if path.is_file()]
    assert not any("secret" in log for log in logs)
    assert set(node.server.received[-1].headers) == {"host", "content-type", "accept", "incremental", "content-length"}


def test_a_request_in_chunks_passes_while_its_sender_still_waits(tmp_path: Path) -> None:
    """With nginx's usual buffering the relay would get nothing before the end."""
    for buffering in (False, True):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.settimeout(1 if buffering else 20)
            node = f"http://127.0.0.1:{listening.getsockname()[1]}"
            folder = tmp_path / str(buffering)
            with relayed(node) as relay, nginx(folder, relay, buffering=buffering) as url:
                address = httpx.URL(url)
                with socket.create_connection((address.host, address.port or 80), timeout=20) as user:
                    head = f"POST /{node.removeprefix('http://')} HTTP/1.1\r\nHost: x\r\nContent-Type: "
                    chunked = "\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n"
                    user.sendall((head + CHUNKED_REQUEST_TYPE + chunked).encode())
                    if buffering:
                        with pytest.raises(TimeoutError):
                            listening.accept()
                        continue
                    accepted, _ = listening.accept()
                    with accepted:
                        accepted.settimeout(20)
                        got = b""
                        while b"first" not in got:
                            got += accepted.recv(4096)
