"""At the levels of vaults the gateway forgets a prompt as soon as the backend has it: not a byte is left in its memory.

A gateway runs as a process of its own, the way the controller starts it (freed memory is overwritten, asyncio's own
loop), over a fake backend that keeps nothing. While answers are held open, its whole memory is searched.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import secrets
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from cloister.errors import VaultLost
from cloister.gateway.answer import StreamedAnswer
from cloister.process.hardening import WIPE_FREED_MEMORY
from tests.gateway.fakes import KEY, MODEL, FakeBackend, chat_body, completion_body

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
RESPONSES = "/v1/responses"
PROGRAM = """
import asyncio, sys
from cloister.config import GatewaySettings
from cloister.gateway.app import create_app
from cloister.gateway.server import serve
from tests.gateway.fakes import MODEL, ByteTokenizer, FakeBackend

async def main():
    backend, settings = FakeBackend(), GatewaySettings(port=0)
    backend.remembers, backend.pause, backend.ends = sys.argv[1] == "remembers", 0.05, False
    app = create_app(backend, ByteTokenizer(), MODEL, settings, created=1)
    await serve(app, settings, lambda url: print(url, flush=True))

asyncio.run(main())
"""


class Gateway:
    """A gateway's process: where it listens, and what its memory holds."""

    def __init__(self, pid: int, url: str) -> None:
        self.pid, self.url = pid, url

    def holds(self, secret: str) -> int:
        """How often the secret is in its memory, wherever that can be read."""
        count = 0
        with open(f"/proc/{self.pid}/maps") as maps, open(f"/proc/{self.pid}/mem", "rb", 0) as memory:
            for line in maps:
                place, rights, *_ = line.split()
                if not rights.startswith("rw"):
                    continue
                start, end = (int(border, 16) for border in place.split("-"))
                try:
                    memory.seek(start)
                    count += memory.read(end - start).count(secret.encode())
                except OSError:
                    continue  # the mapping has gone meanwhile
        return count

    def until_running(self, client: httpx.Client) -> None:
        while "cloister_running 1.0" not in client.get("/metrics", headers=KEY).raise_for_status().text:
            threading.Event().wait(0.02)

    def until_idle(self, client: httpx.Client) -> None:
        while "cloister_running 0.0" not in client.get("/metrics", headers=KEY).raise_for_status().text:
            threading.Event().wait(0.02)


@contextmanager
def gateway(habit: str) -> Iterator[Gateway]:
    environment = {**os.environ, **WIPE_FREED_MEMORY}
    command = [sys.executable, "-c", PROGRAM, habit]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout
        try:
            yield Gateway(process.pid, process.stdout.readline().strip())
        finally:
            process.kill()


@pytest.fixture(scope="module")
def forgetful() -> Iterator[Gateway]:
    with gateway("forgets") as running:
        yield running


def saying(path: str, text: str, **fields: Any) -> dict[str, Any]:
    if path == COMPLETIONS:
        return completion_body(prompt=[text, text], **fields)
    if path == RESPONSES:
        parts = [{"role": "user", text[:23]: 1, "content": [{"type": "input_text", "text": text}]}]
        return {"model": MODEL, "input": parts, "instructions": text[:40], "temperature": 0, **fields}
    return chat_body(messages=[{"role": "user", "content": text}], **fields)


def limit_of(path: str) -> str:
    return "max_output_tokens" if path == RESPONSES else "max_tokens"


def calling(secret: str) -> dict[str, Any]:
    """Tools, a call, its result, reasoning and words for the template: all of them say the secret."""
    function = {"name": secret, "description": secret, "parameters": {"properties": {secret: {"enum": [secret]}}}}
    call = {"id": secret, "type": "function", "function": {"name": secret, "arguments": json.dumps({secret: secret})}}
    messages = [
        {"role": "user", "content": secret},
        {"role": "assistant", "tool_calls": [call], "reasoning_content": secret},
        {"role": "tool", "tool_call_id": secret, "content": secret},
    ]
    tools = [{"type": "function", "function": function}]
    return chat_body(messages=messages, tools=tools, chat_template_kwargs={"word": secret})


def held_while_decoding(running: Gateway, path: str, body: dict[str, Any], secret: str) -> int:
    """How often the secret is in the gateway's memory while the answer comes."""
    with httpx.Client(base_url=running.url, headers=KEY, timeout=60) as client:
        if body["stream"]:
            with client.stream("POST", path, json=body) as response:
                assert response.status_code == 200
                lines = response.iter_lines()  # to drop it would be to leave
                next(lines)
                found = running.holds(secret)
        else:
            asking = threading.Thread(target=lambda: client.post(path, json={**body, limit_of(path): 40}))
            asking.start()
            with httpx.Client(base_url=running.url) as other:
                running.until_running(other)
                found = running.holds(secret)
            asking.join()
        running.until_idle(client)
    return found


@pytest.mark.parametrize("level", ["partitioned", "isolated"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("filling", ["", " and so on" * 100])
def test_no_prompt_is_left_while_its_answer_comes(
    forgetful: Gateway, level: str, path: str, stream: bool, filling: str
) -> None:
    secret = f"canary-{secrets.token_hex(8)}"
    body = saying(path, secret + filling, protection=level, stream=stream, session="s")
    if path == CHAT:
        body["n"] = 1
    if path == COMPLETIONS and not stream:
        body["prompt"] = body["prompt"][:1]  # `until_running` waits for one
    assert held_while_decoding(forgetful, path, body, secret) == 0


def test_no_tool_is_left_while_its_answer_comes(forgetful: Gateway) -> None:
    for stream in (True, False):
        secret = f"canary-{secrets.token_hex(8)}"
        body = {**calling(secret), "protection": "partitioned", "stream": stream, "session": "s"}
        assert held_while_decoding(forgetful, CHAT, body, secret) == 0


@pytest.mark.parametrize("level", ["partitioned", "isolated"])
@pytest.mark.parametrize("filling", ["", " and so on" * 100])
def test_no_input_is_left_while_its_embedding_is_made(forgetful: Gateway, level: str, filling: str) -> None:
    secret = f"canary-{secrets.token_hex(8)}"
    body = {"model": MODEL, "input": secret + filling, "protection": level}
    with httpx.Client(base_url=forgetful.url, headers=KEY, timeout=60) as client:
        asking = threading.Thread(target=lambda: client.post(EMBEDDINGS, json=body))
        with httpx.Client(base_url=forgetful.url) as other:
            asking.start()
            forgetful.until_running(other)
            found = forgetful.holds(secret)
            asking.join()
    assert found == forgetful.holds(secret) == 0


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES])
def test_not_even_a_piece_is_left_that_a_parser_read_at_once(forgetful: Gateway, path: str) -> None:
    """The JSON parser takes strings in pieces of 16 bytes, and leaves on the stack the one in which a string ends."""
    left = 0
    with httpx.Client(base_url=forgetful.url, headers=KEY, timeout=60) as client:
        for shift in range(16):
            secret = f"canary-{'x' * shift}{secrets.token_hex(16)}"
            one = {"prompt": secret} if path == COMPLETIONS else {}
            body = {**saying(path, secret, protection="partitioned", **{limit_of(path): 1}), **one}
            if path == EMBEDDINGS:
                body = {"model": MODEL, "input": secret, "protection": "partitioned"}
            assert client.post(path, json=body).status_code == 200
            left += forgetful.holds(secret[-10:])
            if path == CHAT:
                body = {**calling(secret[:60]), "protection": "partitioned", "max_tokens": 1}
                assert client.post(path, json=body).status_code == 200
                left += forgetful.holds(secret[:60][-10:])
    assert left == 0


async def test_a_choice_refused_while_another_is_answered_leaves_nothing(
    http: httpx.AsyncClient, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream's status is out, so the error ends here: with its frames it would hold the job until the next gc."""
    jobs: list[weakref.ref[Any]] = []
    generate, news = backend.generate, StreamedAnswer._news
    backend.remembers, backend.pause = False, 0.01
    sent = asyncio.Event()
    asked = 0

    async def second_fails(tenant: str, job: Any, params: Any) -> Any:
        jobs.append(weakref.ref(job))
        if len(jobs) == 2:
            await sent.wait()
            raise VaultLost.because("vault_lost")
        return await generate(tenant, job, params)

    async def next_news(answer: StreamedAnswer) -> Any:
        nonlocal asked
        asked += 1
        if asked > 2:  # so the status and a first piece are out
            sent.set()
        return await news(answer)

    monkeypatch.setattr(backend, "generate", second_fails)
    monkeypatch.setattr(StreamedAnswer, "_news", next_news)
    gc.collect()
    gc.disable()
    try:
        response = await http.post(COMPLETIONS, json=completion_body(prompt=["a", "b"], stream=True))
        assert "vault_lost" in response.text and '"text":"H"' in response.text
        assert [job() for job in jobs] == [None, None]
    finally:
        gc.enable()


def test_the_search_would_find_one() -> None:
    secret = f"canary-{secrets.token_hex(8)}"
    with gateway("remembers") as running:
        assert held_while_decoding(running, CHAT, saying(CHAT, secret, stream=True), secret) > 0


@pytest.mark.parametrize("level", ["partitioned", "isolated"])
def test_nothing_is_left_of_what_was_refused(forgetful: Gateway, level: str) -> None:
    """By the schema, by us for the level's sake, and by the vault: every way a body is turned away."""
    secret = f"canary-{secrets.token_hex(8)}"
    tagged = [{"role": "user", "content": f"<confidential>{secret}", "public": True}]
    bodies = [
        (CHAT, saying(CHAT, secret, temperature=9)),
        (CHAT, {**saying(CHAT, secret), "messages": [{"role": secret, "content": secret}]}),
        (CHAT, {**saying(CHAT, secret), secret: secret, "model": secret}),
        (CHAT, saying(CHAT, secret, max_tokens=0)),
        (COMPLETIONS, saying(COMPLETIONS, secret, echo=True)),
        (CHAT, {**saying(CHAT, secret), "messages": tagged}),
        (CHAT, {**saying(CHAT, secret, stream=True, n=3), "messages": tagged}),
        (COMPLETIONS, {**saying(COMPLETIONS, secret), "prompt": {"text": f"<confidential>{secret}", "public": True}}),
        (CHAT, saying(CHAT, secret * 100)),
        (RESPONSES, saying(RESPONSES, secret, previous_response_id=secret)),
        (RESPONSES, {**saying(RESPONSES, secret), "input": [{"role": "user", "content": secret}, {"id": secret}]}),
        (RESPONSES, saying(RESPONSES, secret, tools=[{"type": secret, secret: {secret: secret}}])),
        (RESPONSES, {**saying(RESPONSES, secret), "text": {secret: secret}}),
        (RESPONSES, {**saying(RESPONSES, secret), secret: secret}),
        (CHAT, {**calling(secret), "tool_choice": {"type": "function", "function": {"name": f"{secret}x"}}}),
        (CHAT, {**calling(secret), "tools": [{"type": "function", "function": {"name": f"{secret} {secret}"}}]}),
        (CHAT, {**calling(secret), "chat_template_kwargs": {secret: [secret]}}),
    ]
    with httpx.Client(base_url=forgetful.url, headers=KEY) as client:
        for path, body in bodies:
            response = client.post(path, json={"protection": level, **body})
            assert response.status_code in (400, 404), response.text
            client.get("/health")
            assert forgetful.holds(secret) == 0, json.dumps({**body, "messages": "…", "prompt": "…"})
        broken = json.dumps(saying(CHAT, secret)).encode()[:-3]
        assert client.post(CHAT, content=broken).status_code == 400
        assert forgetful.holds(secret) == 0
