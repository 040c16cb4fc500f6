"""Which level a request is served at, what the backend then gets, and what is refused there."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from cloister.backend.base import OpenJob, VaultJob
from cloister.config import GatewaySettings
from cloister.errors import InvalidRequest, LevelUnavailable
from cloister.gateway.api import Levels
from cloister.gateway.app import create_app
from cloister.levels import LEVELS as EVERY_LEVEL
from cloister.messages.prompts import ChatPrompt, PromptMessage, TextPrompt, TokenPrompt
from cloister.vault.reading import read_prompt
from tests.gateway.fakes import KEY, LEVELS, MODEL, ByteTokenizer, FakeBackend, chat_body, completion_body

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HEADER = "X-Cloister-Protection"


async def post(http: httpx.AsyncClient, fields: dict[str, Any], header: str | None = None) -> httpx.Response:
    return await http.post(CHAT, json=chat_body(**fields), headers={HEADER: header} if header else {})


@pytest.mark.parametrize("stream", [False, True])
async def test_partitioned_is_the_default(http: httpx.AsyncClient, backend: FakeBackend, stream: bool) -> None:
    response = await post(http, {"stream": stream})
    assert response.headers[HEADER] == "partitioned"
    job = backend.submitted[0].job
    assert isinstance(job, VaultJob) and job.level == "partitioned"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("place", ["body", "header", "both"])
async def test_the_level_asked_for_is_the_level_served(app: Any, backend: FakeBackend, level: str, place: str) -> None:
    fields = {} if place == "header" else {"protection": level}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=KEY) as http:
        response = await post(http, fields, None if place == "body" else level)
    assert response.headers[HEADER] == level
    job = backend.submitted[0].job
    assert isinstance(job, OpenJob) if level == "open" else isinstance(job, VaultJob) and job.level == level


@pytest.mark.parametrize(
    ("fields", "header", "code"),
    [
        ({"protection": "open"}, "partitioned", "invalid_request"),
        ({"protection": "partitioned"}, "open", "invalid_request"),
        ({"protection": "isolated"}, "partitioned", "invalid_request"),
        ({"protection": "open"}, "mpc", "invalid_request"),
        ({"protection": "mpc"}, None, "protection_unavailable"),
        ({}, "obfuscated", "protection_unavailable"),
        ({}, "secretive", "invalid_request"),
        ({}, "Open", "invalid_request"),
    ],
)
async def test_a_wish_that_cannot_be_met_is_refused_not_bent(
    http: httpx.AsyncClient, backend: FakeBackend, fields: dict[str, Any], header: str | None, code: str
) -> None:
    response = await post(http, fields, header)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == (code, "protection")
    assert not backend.submitted


async def test_a_server_without_vaults_serves_open_only_to_who_asks_for_it() -> None:
    backend = FakeBackend(("open",))
    app = create_app(backend, ByteTokenizer(), MODEL, GatewaySettings(), created=1)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", headers=KEY) as http:
        assert (await http.get("/api/page")).json()["default_level"] is None
        for fields in ({}, {"protection": "partitioned"}):
            error = (await post(http, fields)).json()["error"]
            assert error["code"] == "protection_unavailable" and "'open'" in error["message"]
        assert not backend.submitted
        assert (await post(http, {"protection": "open"})).is_success


def test_without_partitioned_the_default_is_stronger_never_weaker() -> None:
    levels = Levels(("open", "isolated"))
    assert levels.choose(None, None).name == "isolated"
    with pytest.raises(LevelUnavailable, match="It offers: open, isolated"):
        levels.choose("partitioned", None)
    with pytest.raises(LevelUnavailable, match=r"sees everything\. Switched off\.$"):
        Levels(("open",), {"mpc": "Switched off."}).choose("mpc", None)
    with pytest.raises(InvalidRequest):
        levels.choose("isolated", "open")


def test_the_table_is_honest_about_what_partitioned_shows() -> None:
    sees = EVERY_LEVEL["partitioned"].provider_sees
    assert "answer's tokens" in sees and "attention" in sees


async def test_a_vaults_prompt_goes_unread(
    http: httpx.AsyncClient, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What arrives is the body's own words, tags and all; the gateway's tokenizer is not asked."""
    messages = [
        {"role": "developer", "content": "Be <confidential>kind</confidential>.", "public": True},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    whole = await post(http, {"messages": messages})
    job = backend.submitted[-1].job
    assert isinstance(job, VaultJob)
    turns = (PromptMessage("developer", "Be <confidential>kind</confidential>.", True), PromptMessage("user", "ab"))
    assert read_prompt(job.prompt) == ChatPrompt(turns)
    assert whole.json()["usage"]["prompt_tokens"] == len("<system>Be kind.<user>ab<assistant>"), "by the vault's count"
    for prompt, sent in (("Once", TextPrompt("Once")), ([1, 2], TokenPrompt((1, 2)))):
        await http.post(COMPLETIONS, json=completion_body(prompt=prompt))
        job = backend.submitted[-1].job
        assert isinstance(job, VaultJob) and read_prompt(job.prompt) == sent


async def test_the_gateway_does_not_tokenise_for_a_vault(
    http: httpx.AsyncClient, app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(prompt: object) -> None:
        raise AssertionError("the gateway read a prompt that is not its own to read")

    monkeypatch.setattr(app.state.prompts, "read", refuse)
    for level in ("partitioned", "isolated"):
        assert (await post(http, {"protection": level})).is_success
    with pytest.raises(AssertionError):
        await app.state.prompts.read(None)


async def test_tags_are_read_at_open_too(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    body = completion_body(
        prompt={"text": "Dear <confidential>Ann</confidential>, hello", "public": True}, protection="open"
    )
    assert (await http.post(COMPLETIONS, json=body)).is_success
    job = backend.submitted[0].job
    assert isinstance(job, OpenJob)
    assert bytes(job.prompt).decode() == "Dear Ann, hello" and job.public == len("Dear ")
    echoed = await http.post(COMPLETIONS, json={**body, "echo": True})
    assert echoed.json()["choices"][0]["text"].startswith("Dear Ann, helloHello"), "an echo shows what was read"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "text", ["<confidential>x", "x</confidential>", "<confidential><confidential>x</confidential>"]
)
async def test_unbalanced_tags_are_refused_at_every_level(http: httpx.AsyncClient, level: str, text: str) -> None:
    for path, body in (
        (CHAT, chat_body(messages=[{"role": "user", "content": text, "public": True}])),
        (COMPLETIONS, completion_body(prompt={"text": text, "public": True})),
    ):
        response = await http.post(path, json=body)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "invalid_request"


@pytest.mark.parametrize(
    ("fields", "param", "refused_at"),
    [
        ({"echo": True}, "echo", {"partitioned", "isolated"}),
        ({"echo": True, "logprobs": 1, "max_tokens": 0}, "echo", {"partitioned", "isolated"}),
        ({"max_tokens": 0}, "max_tokens", {"partitioned", "isolated"}),
        ({"repetition_penalty": 1.1}, "repetition_penalty", {"partitioned"}),
        ({"repetition_penalty": 1}, "repetition_penalty", set()),
        ({"presence_penalty": 1, "frequency_penalty": 1, "logprobs": 2, "n": 2, "stop": "x", "seed": 1}, "", set()),
    ],
)
@pytest.mark.parametrize("level", LEVELS)
async def test_what_needs_the_prompt_is_refused_with_a_way_out(
    http: httpx.AsyncClient,
    backend: FakeBackend,
    level: str,
    fields: dict[str, Any],
    param: str,
    refused_at: set[str],
) -> None:
    response = await http.post(COMPLETIONS, json=completion_body(**fields))
    if level not in refused_at:
        assert response.status_code == 200, response.text
        return
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert level in error["message"]
    assert not backend.submitted


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(("field", "meant"), [("protecton", "protection"), ("sesion", "session"), ("privacy", None)])
async def test_a_field_that_nobody_knows_is_refused(
    http: httpx.AsyncClient, backend: FakeBackend, path: str, field: str, meant: str | None
) -> None:
    body = (chat_body if path == CHAT else completion_body)(**{field: "isolated"})
    response = await http.post(path, json=body)
    error = response.json()["error"]
    assert response.status_code == 400 and error["param"] == field
    assert "isolated" not in error["message"] and (meant or "Leave it out") in error["message"]
    assert not backend.submitted


async def test_fields_of_openai_that_change_nothing_are_accepted(http: httpx.AsyncClient) -> None:
    response = await http.post(CHAT, json=chat_body(user="me", metadata={"a": "b"}, store=True, verbosity="low"))
    assert response.status_code == 200


@pytest.mark.parametrize("headers", [[("X-Cloister-Protecton", "isolated")], [(HEADER, "open"), (HEADER, "isolated")]])
async def test_a_header_of_ours_that_is_unknown_or_given_twice_is_refused(
    http: httpx.AsyncClient, backend: FakeBackend, headers: list[tuple[str, str]]
) -> None:
    response = await http.post(CHAT, json=chat_body(), headers=httpx.Headers([*headers]))
    assert response.status_code == 400 and HEADER in response.json()["error"]["message"]
    assert not backend.submitted
