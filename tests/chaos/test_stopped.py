"""A real server whose processes are stopped (SIGSTOP), each kind once: it does not hang, and is whole again.

A stopped process is killed and replaced as one that died. Its requests end with a typed error; without a template the
node ends, as it does when one dies (process.code).
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import httpx
import psutil
import pytest

from tests.forkserver.model import save_model
from tests.served import Server, lives, running_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HEADERS = {"Authorization": "Bearer cloister-dev"}
TINY = ("--dtype", "fp32", "--kv-cache-mib", "8", "--vault-kv-mib", "8", "--spare-vaults", "1", "--detector")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = save_model(tmp_path_factory.mktemp("model") / "tiny").path
    with running_server(tmp_path_factory.mktemp("served") / "log", "--model", str(model), *TINY) as server:
        server.url()
        yield server


def eventually(true: Callable[[], bool], patience_s: float = 60) -> None:
    end = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < end, "it does not come to rest"
        time.sleep(0.1)


def of(server: Server, *roles: str) -> dict[str, list[psutil.Process]]:
    """The living processes of these roles that do the work: not their keepers."""
    found: dict[str, list[psutil.Process]] = {role: [] for role in roles}
    for process in server.children():
        for role in roles:
            with suppress(psutil.Error):
                if process.name() == f"cl-{role}" and lives(process):
                    found[role].append(process)
    return found


def body(level: str, **more: object) -> dict[str, object]:
    message = {"role": "user", "content": "Tell me about the sea."}
    return {"model": "tiny", "messages": [message], "protection": level, "max_tokens": 4, "temperature": 0, **more}


def is_whole(server: Server) -> bool:
    """Whether it is healthy and serves at every level that needs one kind of process or another."""
    url = server.url()
    try:
        if httpx.get(f"{url}/health", timeout=60).status_code != 200:
            return False
        asked = (httpx.post(f"{url}/v1/chat/completions", json=body(level), headers=HEADERS, timeout=60)
                 for level in ("open", "shared", "partitioned", "isolated"))  # fmt: skip
        return all(reply.status_code == 200 for reply in asked)
    except httpx.TransportError:
        return False


def stop(server: Server, *roles: str) -> list[psutil.Process]:
    """Stop one process of each role; those that were stopped."""
    victims = []
    for role, found in of(server, *roles).items():
        assert found, role
        victims.append(found[0])
    for victim in victims:
        victim.suspend()
    return victims


def is_replaced(server: Server, *roles: str) -> bool:
    return all(of(server, *roles).values())


class Streamed(threading.Thread):
    """An answer that would go on for long, in a thread; `error` is what ended it."""

    def __init__(self, server: Server, level: str) -> None:
        super().__init__(daemon=True)
        self._url, self._body = server.url(), body(level, stream=True, max_tokens=400, ignore_eos=True)
        self.begun = threading.Event()
        self.error: dict[str, Any] | None = None
        self.start()
        assert self.begun.wait(120)

    def run(self) -> None:
        with httpx.stream(
            "POST", f"{self._url}/v1/chat/completions", json=self._body, headers=HEADERS, timeout=240
        ) as it:
            for line in it.iter_lines():
                if line.startswith("data: {"):
                    self.error = json.loads(line[6:]).get("error")
                    self.begun.set()


def test_processes_that_speak_to_users_and_the_detector(server: Server) -> None:
    eventually(lambda: is_replaced(server, "detector"))
    victims = stop(server, "gateway", "sealed-api", "detector")
    eventually(lambda: not any(lives(victim) for victim in victims))
    eventually(lambda: is_replaced(server, "gateway", "sealed-api", "detector") and is_whole(server))
    for name in ("gateway", "sealed API", "detector"):
        assert f"The {name} is stopped" in server.said


def test_the_service_and_a_vault_that_waits(server: Server) -> None:
    """The vault is a spare one: nobody would notice before a user's prompt was in it."""
    eventually(lambda: is_replaced(server, "vault", "service"))
    streamed = Streamed(server, "open")
    victims = stop(server, "service", "vault")
    streamed.join(120)
    assert streamed.error is not None and streamed.error["code"] == "service_unavailable"
    eventually(lambda: not any(lives(victim) for victim in victims))
    eventually(lambda: is_replaced(server, "service", "vault") and is_whole(server))


def test_the_fork_server(server: Server) -> None:
    """An answer under way needs it no more, and either ends well before it is found or with an error that says so."""
    streamed = Streamed(server, "partitioned")
    forked = [one for found in of(server, "service", "vault").values() for one in found]
    victims = stop(server, "forkserver")
    streamed.join(120)
    assert not streamed.is_alive()
    assert streamed.error is None or streamed.error["code"] in ("service_unavailable", "vault_lost")
    eventually(lambda: not any(lives(one) for one in (*victims, *forked)))
    eventually(lambda: is_replaced(server, "forkserver", "service", "vault") and is_whole(server))


def test_a_template(server: Server) -> None:
    """The last test: the node ends with its code, and nothing of it stays."""
    family = server.children()
    stop(server, "template")
    assert server.process.wait(120) == 1
    assert "holds the node's code" in server.said and "The template is stopped" in server.said
    eventually(lambda: not any(lives(one) for one in family), 30)
    assert server.process.returncode != -signal.SIGKILL
