"""The whole thing as users run it: `cloister serve --vault-host`, the vaults in a network of their own."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import httpx
import pytest

from cloister.models.source import ModelFolder
from tests.served import Server, running_server
from tests.vault_host.host_process import HostProcess, another_network, why_no_namespaces

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

QUESTION = "Name three rivers, and say where each of them begins."
# The two would be on two machines, and do not make way for each other.
ONE = ("--threads", "1")
HEADERS = {"Authorization": "Bearer cloister-dev"}


def body(level: str, tokens: int, **more: object) -> dict[str, object]:
    message = {"role": "user", "content": QUESTION}
    return {
        "model": "SmolLM2-135M-Instruct",
        "messages": [message],
        "protection": level,
        "max_tokens": tokens,
        "temperature": 0,
        **more,
    }


def ask(url: str, level: str, tokens: int = 24) -> str:
    reply = httpx.post(f"{url}/v1/chat/completions", json=body(level, tokens), headers=HEADERS, timeout=120)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["message"]["content"])


@pytest.mark.skipif(bool(why_no_namespaces()), reason=why_no_namespaces() or "-")
def test_vaults_in_another_network_give_what_open_gives_and_end_as_a_503(
    tmp_path: Path, key: Path, short_folder: ModelFolder
) -> None:
    how = (*ONE, "--model", str(short_folder.path))
    with another_network() as (namespace, host):
        vault_host = HostProcess(tmp_path / "vault_host", key, *how, listen=f"{host}:7000", namespace=namespace)
        try:
            # The two start at once: a server may be there before its vault host is.
            keys = ("--vault-host", f"{host}:7000", "--vault-host-key", str(key))
            with running_server(tmp_path / "server", *keys, *how) as server:
                vault_host.address()
                assert os.readlink(f"/proc/{vault_host.process.pid}/ns/net") != os.readlink("/proc/self/ns/net")
                until_health_is(server.url(), 200)
                _answers_are_equal(server.url())
                _a_killed_host_is_a_503(server, vault_host)
        finally:
            vault_host.stop()


def until_health_is(url: str, status: int) -> httpx.Response:
    """A server whose vault host is away is not healthy, for its default level needs one."""
    end = time.monotonic() + 120
    while (reply := httpx.get(f"{url}/health", timeout=60)).status_code != status:
        assert time.monotonic() < end, reply.text
        time.sleep(0.1)
    return reply


def _answers_are_equal(url: str) -> None:
    plain = ask(url, "open")
    assert len(plain) > 20
    assert ask(url, "partitioned") == plain
    assert ask(url, "isolated") == plain


def _a_killed_host_is_a_503(server: Server, vault_host: HostProcess) -> None:
    url = server.url()
    request = body("partitioned", 2000, stream=True)
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=request, headers=HEADERS, timeout=120) as stream:
        lines = stream.iter_lines()
        while "content" not in next(lines):
            pass
        vault_host.process.kill()
        rest = "\n".join(lines)
    errors = [json.loads(line[6:])["error"] for line in rest.splitlines() if line.startswith('data: {"error"')]
    assert [error["code"] for error in errors] == ["vault_lost"]
    refused = httpx.post(f"{url}/v1/chat/completions", json=body("partitioned", 5), headers=HEADERS, timeout=120)
    assert refused.status_code == 503 and refused.json()["error"]["code"] == "vault_lost"
    assert len(ask(url, "open")) > 20
    error = until_health_is(url, 503).json()["error"]
    assert error["code"] == "service_unavailable" and "'partitioned', cannot be served now" in error["message"]
