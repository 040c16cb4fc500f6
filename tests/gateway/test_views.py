"""The account of what the provider's process has: of one's own requests only, and only for a while."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from cloister.config import GatewaySettings
from cloister.gateway.app import create_app
from cloister.gateway.generation import KEPT_S, MOST, WatchedAnswer, WatchedAnswers
from cloister.keys import key_line, new_key
from cloister.messages.controller_frontend import View
from tests.gateway.fakes import KEY, MODEL, ByteTokenizer, FakeBackend, chat_body

CHAT = "/v1/chat/completions"


@pytest.fixture
async def tenants(
    backend: FakeBackend, tmp_path: Path
) -> AsyncIterator[tuple[httpx.AsyncClient, dict[str, str], dict[str, str]]]:
    """Two tenants that even trust each other: views are nobody's but the asker's all the same."""
    ann, bob = new_key(), new_key()
    path = tmp_path / "keys.toml"
    path.write_text(f"[keys]\n{key_line(ann, 'ann', 'lab')}\n{key_line(bob, 'bob', 'lab')}")
    app = create_app(backend, ByteTokenizer(), MODEL, GatewaySettings(keys_file=path), created=1)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        yield http, {"Authorization": f"Bearer {ann}"}, {"Authorization": f"Bearer {bob}"}


async def test_the_owner_sees_what_the_service_says_it_has(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    backend.views = {
        1: View(1, True, (72, 105), (72, 101), 60, 4000, 58, 3900, 30),
        2: View(2, True, (), (33,), 30, 2000, 30, 2000, 30),
    }
    answer = (await http.post(CHAT, json=chat_body(n=2))).json()
    response = await http.get(f"/v1/requests/{answer['id']}/view")
    assert response.headers["cache-control"] == "no-store"
    seen = response.json()
    assert (seen["object"], seen["id"], seen["protection"], seen["running"]) == (
        "request.view", answer["id"], "partitioned", False,
    )  # fmt: skip
    assert seen["choices"][0] == {
        "index": 0, "known": True, "layers": 30,
        "prompt": {"tokens": [72, 105], "text": "Hi"}, "output": {"tokens": [72, 101], "text": "He"},
        "asked_rows": 60, "asked_bytes": 4000, "answered_rows": 58, "answered_bytes": 3900,
        "found": 0, "found_shared": 0, "blocks": [],
        "streams": [],
    }  # fmt: skip
    assert seen["choices"][1]["prompt"] == {"tokens": [], "text": ""}
    assert seen["choices"][1]["output"]["text"] == "!"


async def test_the_owner_sees_which_part_may_be_shared_and_why_not_the_rest(
    http: httpx.AsyncClient, backend: FakeBackend
) -> None:
    size = backend.ready.block_tokens
    prompt = tuple(b"x" * size + b"y" * size + b"zz")
    codes = (bytes((2, 0, 0)), bytes((2, 1, 1)), bytes((255, 9, 254)))
    backend.views = {1: View(1, True, prompt, found=size, found_shared=size, labels=codes[0], tiers=codes[1],
                             categories=codes[2])}  # fmt: skip
    answer = (await http.post(CHAT, json=chat_body())).json()
    [choice] = (await http.get(f"/v1/requests/{answer['id']}/view")).json()["choices"]
    assert (choice["found"], choice["found_shared"]) == (size, size)
    assert choice["blocks"] == [
        {"text": "x" * size, "label": "public", "tier": 2, "category": None},
        {"text": "y" * size, "label": "private", "tier": 1, "category": "financial"},
        {"text": "zz", "label": "private", "tier": 1, "category": "inherited"},
    ]


async def test_nobody_elses_request_can_be_told_from_one_that_never_was(
    tenants: tuple[httpx.AsyncClient, dict[str, str], dict[str, str]], backend: FakeBackend
) -> None:
    http, ann, bob = tenants
    backend.views = {1: View(1, True, (72, 105), (72,))}
    answer = (await http.post(CHAT, json=chat_body(), headers=ann)).json()
    path = f"/v1/requests/{answer['id']}/view"
    assert (await http.get(path, headers=ann)).json()["choices"][0]["prompt"]["text"] == "Hi"
    others, nobodys = await http.get(path, headers=bob), await http.get("/v1/requests/chatcmpl-0/view", headers=bob)
    assert others.status_code == nobodys.status_code == 404
    assert others.content == nobodys.content
    assert set(others.headers) == set(nobodys.headers)
    assert (await http.get(path)).status_code == 401


async def test_it_can_be_asked_while_the_answer_runs(url: str, backend: FakeBackend) -> None:
    backend.pause, backend.ends = 0.02, False
    backend.views = {1: View(1, True, (), (72,), 30, 1, 30, 1, 30)}
    async with (
        httpx.AsyncClient(base_url=url, headers=KEY) as http,
        http.stream("POST", CHAT, json=chat_body(stream=True)) as response,
    ):
        lines = response.aiter_lines()
        first = await anext(lines)
        seen = (await http.get(f"/v1/requests/{json.loads(first[6:])['id']}/view")).json()
        assert seen["running"] is True
        assert seen["choices"][0]["output"]["text"] == "H"
    assert backend.submitted[0].tenant == "development"


def test_an_ended_answer_is_forgotten_after_a_while() -> None:
    now = 0.0
    watched = WatchedAnswers(lambda: now)
    answer = WatchedAnswer("a", "ann", "open")
    watched.begin(answer)
    now = 10_000.0
    assert watched.find("a", "ann") is answer, "one that runs is never too old"
    watched.end(answer)
    now += KEPT_S
    assert watched.find("a", "ann") is answer and watched.find("a", "bob") is None
    now += 0.1
    assert watched.find("a", "ann") is None


def test_there_are_never_too_many() -> None:
    watched = WatchedAnswers()
    first = WatchedAnswer("running", "ann", "open")
    watched.begin(first)
    for number in range(2 * MOST):
        answer = WatchedAnswer(str(number), "ann", "open")
        watched.begin(answer)
        watched.end(answer)
    kept = [name for name in ("running", *map(str, range(2 * MOST))) if watched.find(name, "ann")]
    assert len(kept) == MOST
    assert kept[0] == "running" and kept[-1] == str(2 * MOST - 1), "those that run go last"
    for number in range(MOST):
        watched.begin(WatchedAnswer(f"more {number}", "ann", "open"))
    assert watched.find("running", "ann") is None
    watched.end(first)
    assert watched.find("running", "ann") is None


async def test_a_request_that_failed_is_not_running(http: httpx.AsyncClient, backend: FakeBackend, app) -> None:  # type: ignore[no-untyped-def]
    backend.pause = 30
    task = asyncio.create_task(http.post(CHAT, json=chat_body()))
    while not backend.open:
        await asyncio.sleep(0.01)
    (answer,) = app.state.api.watched._running.values()
    assert answer.requests == {0: 1}
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert answer.ended is not None
