"""Tools through HTTP: OpenAI's own client holds a conversation with calls; bounds, streams, and what is never shown."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI

from cloister.config import DEVELOPMENT_KEY
from cloister.tools.base import Call
from cloister.tools.families import FamilyName, Parsing
from tests.gateway.fakes import LEVELS, MODEL, ByteTokenizer, FakeBackend, chat_body
from tests.tools.test_parsers import WRITE

URL = "/v1/chat/completions"
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ADD: dict[str, Any] = {"type": "function", "function": {"name": "add"}}
GHENT, DELFT = '{"city": "Ghent"}', '{"city": "Delft"}'


def said(*arguments: str) -> str:
    return "\n".join(f'<tool_call>\n{{"name": "get_weather", "arguments": {one}}}\n</tool_call>' for one in arguments)


def prompt_of(backend: FakeBackend) -> str:
    return bytes(backend.submitted[-1].prompt).decode()


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=DEVELOPMENT_KEY, max_retries=0) as client:
        yield client


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_conversation_in_which_the_model_calls(
    client: openai.OpenAI, backend: FakeBackend, level: str, streamed: bool
) -> None:
    more: dict[str, Any] = {"extra_body": {"protection": level}, "model": MODEL, "temperature": 0, "tools": [WEATHER]}
    messages: list[Any] = [{"role": "user", "content": "Where is it warmer?"}]
    backend.answer = "I look.\n" + said(GHENT, DELFT)
    if streamed:
        with client.chat.completions.stream(messages=messages, **more) as stream:
            for _ in stream:
                pass
            message = stream.get_final_completion().choices[0]
    else:
        message = client.chat.completions.create(messages=messages, **more).choices[0]
    assert message.finish_reason == "tool_calls" and message.message.content == "I look."
    calls = message.message.tool_calls or []
    assert [(one.function.name, one.function.arguments) for one in calls] == [
        ("get_weather", GHENT),
        ("get_weather", DELFT),
    ]
    assert len({one.id for one in calls}) == 2 and {one.type for one in calls} == {"function"}
    assert json.dumps({"tools": [WEATHER]}) in prompt_of(backend)
    messages.append(message.message.model_dump(exclude_none=True, exclude={"parsed"}))
    messages += [{"role": "tool", "tool_call_id": one.id, "content": f"{at} degrees"} for at, one in enumerate(calls)]
    backend.answer = "In Delft."
    second = client.chat.completions.create(messages=messages, **more).choices[0]
    assert (second.message.content, second.finish_reason, second.message.tool_calls) == ("In Delft.", "stop", None)
    assert '<tool>0 degrees{"tool_call_id": "' + calls[0].id in prompt_of(backend)
    assert '"name": "get_weather", "arguments": {"city": "Ghent"}' in prompt_of(backend)


async def events_of(http: httpx.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    response = await http.post(URL, json=chat_body(stream=True, **fields))
    assert response.status_code == 200, response.text
    return [json.loads(event.removeprefix("data: ")) for event in response.text.split("\n\n")[:-2]]


@pytest.mark.parametrize("step", [1, 7, 1000])
async def test_a_streamed_call_has_openais_shape(http: httpx.AsyncClient, backend: FakeBackend, step: int) -> None:
    backend.answer, backend.step = "So: " + said(GHENT, DELFT), step
    choices = [event["choices"][0] for event in await events_of(http, tools=[WEATHER])]
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
    assert [(call["index"], call["type"], call["function"]["arguments"]) for call in calls] == [
        (0, "function", GHENT),
        (1, "function", DELFT),
    ]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "So:"
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["tool_calls"]


@pytest.fixture(params=["hermes", "harmony", "mistral"])
def family(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, app: FastAPI) -> FamilyName:
    """The family of the model that is served."""
    named: FamilyName = request.param
    monkeypatch.setattr(ByteTokenizer, "parsing", Parsing(named=named))
    app.state.api = replace(app.state.api, parsing=Parsing(named=named))
    return named


def joined(calls: list[dict[str, Any]]) -> list[str]:
    """Names and arguments, in the way in which OpenAI's clients put pieces together."""
    made: dict[int, str] = {}
    for call in calls:
        begins = call["index"] not in made
        assert begins == ("id" in call) == ("type" in call) == ("name" in call["function"])
        made[call["index"]] = (
            made.get(call["index"], "") + call["function"].get("name", "") + call["function"]["arguments"]
        )
    return [*made.values()]


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
async def test_a_call_that_has_a_form_comes_as_it_is_made(
    monkeypatch: pytest.MonkeyPatch,
    app: FastAPI,
    http: httpx.AsyncClient,
    backend: FakeBackend,
    step: int,
    family: FamilyName,
) -> None:
    odd = '{"city": "a } </tool_call> \\u00e9 <|call|", "x": {"y": [1E2]}}'
    for arguments in ([GHENT], [odd, DELFT]):
        calls = [Call("get_weather", one) for one in arguments]
        backend.answer, backend.step = WRITE[family](*calls), step
        choices = [event["choices"][0] for event in await events_of(http, tools=[WEATHER], tool_choice="required")]
        pieces = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
        read = [text.removeprefix("get_weather") for text in joined(pieces)]
        assert [json.loads(one) for one in read] == [json.loads(one) for one in arguments]
        assert len(pieces) > 2 * len(calls) or family == "mistral" or step > 3, "pieces come early"
        assert not any(choice["delta"].get("content") for choice in choices)
        assert choices[-1]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("family", ["hermes", "harmony"], indirect=True)
@pytest.mark.parametrize("step", [1, 5])
async def test_a_call_that_is_cut_off_has_said_what_was_made(
    monkeypatch: pytest.MonkeyPatch,
    app: FastAPI,
    http: httpx.AsyncClient,
    backend: FakeBackend,
    family: FamilyName,
    step: int,
) -> None:
    backend.answer, backend.step = WRITE[family](Call("get_weather", GHENT)), step
    most = backend.answer.index("hent") + 2
    asked: dict[str, Any] = {"tools": [WEATHER], "tool_choice": "required", "max_tokens": most}
    choices = [event["choices"][0] for event in await events_of(http, **asked)]
    pieces = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
    assert joined(pieces) == ['get_weather{"city": "Ghe'] and choices[-1]["finish_reason"] == "length"
    whole = (await http.post(URL, json=chat_body(**asked))).json()["choices"][0]
    assert whole["message"]["content"].endswith("Ghe") and "tool_calls" not in whole["message"]


async def test_what_is_no_call_stays_text(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    backend.answer = said("[1]")
    for fields in ({"tools": [WEATHER]}, {}, {"tools": [WEATHER], "tool_choice": "none"}):
        choice = (await http.post(URL, json=chat_body(**fields))).json()["choices"][0]
        assert choice["message"] == {"role": "assistant", "content": backend.answer, "refusal": None}
        assert choice["finish_reason"] == "stop"
        assert ("tools" in prompt_of(backend)) == (fields == {"tools": [WEATHER]})
    backend.answer = said(GHENT)
    choice = (await http.post(URL, json=chat_body())).json()["choices"][0]
    assert choice["message"]["content"] == backend.answer, "a request without tools has no calls"
    choice = (await http.post(URL, json=chat_body(tools=[WEATHER], max_tokens=40))).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (backend.answer[:40], "length")


async def test_one_call_where_several_are_not_wanted(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    backend.answer = said(GHENT, DELFT)
    body = chat_body(tools=[WEATHER], parallel_tool_calls=False)
    [call] = (await http.post(URL, json=body)).json()["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": GHENT}
    [call] = [
        call
        for event in await events_of(http, tools=[WEATHER], parallel_tool_calls=False)
        for call in event["choices"][0]["delta"].get("tool_calls", ())
    ]
    assert call["function"]["arguments"] == GHENT


def deep(levels: int) -> Any:
    return {"a": deep(levels - 1)} if levels else 1


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **function}}


def called(arguments: str) -> dict[str, Any]:
    return {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}


CALL = called("{}")
ASKED = {"role": "user", "content": "x"}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"tools": [tool()] * 2}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": f"f{at}"}} for at in range(129)]}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "a secret"}}]}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "x" * 65}}]}, "tools"),
    ({"tools": [{"type": "custom", "custom": {"name": "secret"}}]}, "tools"),
    ({"tools": [tool(parameters=deep(40))]}, "tools"),
    ({"tools": [tool(parameters={"a": [1] * 20_000})]}, "tools"),
    ({"tools": [tool(parameters="secret")]}, "tools"),
    ({"tools": [tool(description=5)]}, "tools"),
    ({"tools": "secret"}, "tools"),
    ({"tools": [tool()], "tool_choice": "secret"}, "tool_choice"),
    ({"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "secret"}}}, "tool_choice"),
    ({"tools": [], "tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"functions": [{"name": "secret"}]}, "functions"),
    ({"messages": [ASKED, {"role": "tool", "content": "secret"}]}, "messages"),
    ({"messages": [{**ASKED, "tool_call_id": "secret"}]}, "messages"),
    ({"messages": [{**ASKED, "tool_calls": [CALL]}]}, "messages"),
    ({"messages": [ASKED, {"role": "tool", "tool_call_id": "a", "content": "secret", "public": True}]}, "messages"),
    ({"messages": [{"role": "assistant", "content": "a", "tool_calls": [CALL], "public": True}]}, "messages"),
    ({"messages": [{"role": "assistant", "tool_calls": [called("[1]")]}]}, "messages"),
    ({"messages": [{"role": "assistant", "tool_calls": [called("secret")]}]}, "messages"),
    ({"messages": [{"role": "assistant", "tool_calls": [CALL] * 129}]}, "messages"),
    ({"messages": [{"role": "assistant", "tool_calls": []}]}, "messages"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"tools": "secret"}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"bos_token": "secret"}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"a": ["secret"]}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"a b": "secret"}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"a": "secret" * 1000}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {f"a{at}": 1 for at in range(33)}}, "chat_template_kwargs"),
    ({"enable_thinking": "secret"}, "enable_thinking"),
    ({"reasoning_effort": "secret"}, "reasoning_effort"),
    ({"calls_tools": True}, "calls_tools"),
]  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
async def test_what_is_malformed_is_refused_without_its_words(
    http: httpx.AsyncClient, backend: FakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for fields, param in BAD:
        response = await http.post(URL, json=chat_body(**fields))
        assert (response.status_code, response.json()["error"]["param"]) == (400, param), fields
        assert "secret" not in response.text.replace("calls_tools", "")
    assert not backend.submitted
    assert not any("secret" in record.getMessage() for record in caplog.records if record.name.startswith("cloister"))


async def test_words_for_the_template_reach_it(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    words = {"style": "short", "enable_thinking": False}
    assert (await http.post(URL, json=chat_body(chat_template_kwargs=words, enable_thinking=False))).is_success
    assert prompt_of(backend).startswith(f"<words>{json.dumps(words)}<user>")
    for fields in ({"enable_thinking": True}, {"reasoning_effort": "low"}):
        given = {**words, "reasoning_effort": "high"}
        refused = await http.post(URL, json=chat_body(chat_template_kwargs=given, **fields))
        assert refused.status_code == 400 and "different" in refused.json()["error"]["message"]


async def test_an_effort_reaches_a_template_that_knows_it(
    monkeypatch: pytest.MonkeyPatch, http: httpx.AsyncClient, backend: FakeBackend
) -> None:
    assert (await http.post(URL, json=chat_body(reasoning_effort="high"))).is_success
    assert prompt_of(backend).startswith("<user>"), "this one does not"
    for template, asked, said in (
        ("reasoning_effort", "xhigh", "xhigh"),
        ("{{ tools }} <|channel|> {{ reasoning_effort }}", "xhigh", "high"),
        ("{{ tools }} <|channel|> {{ reasoning_effort }}", "low", "low"),
    ):
        monkeypatch.setattr(ByteTokenizer, "parsing", Parsing(template))
        assert (await http.post(URL, json=chat_body(reasoning_effort=asked))).is_success
        assert prompt_of(backend).startswith(f'<words>{{"reasoning_effort": "{said}"}}<user>')


@pytest.mark.parametrize("level", LEVELS)
async def test_reasoning_is_told_apart_from_content(
    monkeypatch: pytest.MonkeyPatch, backend: FakeBackend, settings: Any, level: str
) -> None:
    from cloister.gateway.app import create_app

    tails = {None: "<think>\n", True: "<think>\n", False: "<think>\n\n</think>\n\n"}
    monkeypatch.setattr(ByteTokenizer, "parsing", Parsing("<think></think>", {}, tails))
    app = create_app(backend, ByteTokenizer(), MODEL, settings, created=1)
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 5))
    headers = {"Authorization": f"Bearer {DEVELOPMENT_KEY}", "X-Cloister-Protection": level}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as http:
        backend.answer = "Let me see.\n</think>\n\nYes."
        message = (await http.post(URL, json=chat_body())).json()["choices"][0]["message"]
        assert (message["content"], message["reasoning_content"], message["reasoning"]) == (
            *("Yes.", "Let me see."),
            "Let me see.",
        )
        deltas = [event["choices"][0]["delta"] for event in await events_of(http)]
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Let me see."
        assert "".join(delta.get("content", "") for delta in deltas) == "Yes."
        backend.answer = "Yes."
        for fields in ({"enable_thinking": False}, {"chat_template_kwargs": {"thinking": False}}):
            message = (await http.post(URL, json=chat_body(**fields))).json()["choices"][0]["message"]
            assert message == {"role": "assistant", "content": "Yes.", "refusal": None}
        earlier = [ASKED, {"role": "assistant", "content": "Yes.", "reasoning_content": "Let me see."}, ASKED]
        assert (await http.post(URL, json=chat_body(messages=earlier))).is_success
        assert '<assistant>Yes.{"reasoning_content": "Let me see."}' in prompt_of(backend)


async def test_tools_are_private_where_messages_are_public(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    public = [{"role": "system", "content": "Be kind.", "public": True}, {**ASKED, "public": True}]
    assert (await http.post(URL, json=chat_body(messages=public, protection="open"))).is_success
    assert backend.submitted[-1].job.public > 10  # type: ignore[union-attr]
    for fields in ({"tools": [WEATHER]}, {"chat_template_kwargs": {"a": "b"}}):
        assert (await http.post(URL, json=chat_body(messages=public, protection="open", **fields))).is_success
        assert backend.submitted[-1].job.public == len("<"), "up to where a prompt without them differs"  # type: ignore[union-attr]
