"""The cases of Open Responses' compliance tests (openresponses/openresponses, src/lib/compliance-tests.ts, July 2026):
`basic-response`, `assistant-phase`, `streaming-response`, `system-prompt`, `tool-calling`, `image-input`, `multi-turn`,
and `tool-calling-streaming` of an earlier version. Of the others, this server has no WebSocket at this path and no
compaction. The suite itself was run by hand against a node; its schemas are here OpenAI's types."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.gateway.fakes import FakeBackend
from tests.gateway.test_responses import CALL, MESSAGE, PATH, TEXT, ask, body_of, steps, stream
from tests.tools.test_parsers import WRITE, Call


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content, **more}


def prompt_of(backend: FakeBackend) -> str:
    return bytes(backend.submitted[-1].prompt).decode()


HISTORIES = {
    "basic-response": ([said("user", "Say hello.")], "<user>Say hello."),
    "assistant-phase": (
        [
            said("assistant", "I use the saved number.", phase="commentary"),
            said("assistant", "It is four.", phase="final_answer"),
            said("user", "Repeat it."),
        ],
        "<assistant>I use the saved number.<assistant>It is four.<user>Repeat it.",
    ),
    "system-prompt": (
        [said("system", "You are a pirate."), said("user", "Say hello.")],
        "<system>You are a pirate.<user>Say hello.",
    ),
    "multi-turn": (
        [said("user", "My name is Alice."), said("assistant", "Hello Alice!"), said("user", "What is my name?")],
        "<user>My name is Alice.<assistant>Hello Alice!<user>What is my name?",
    ),
}


@pytest.mark.parametrize("case", HISTORIES)
async def test_a_history_is_answered(case: str, http: httpx.AsyncClient, backend: FakeBackend) -> None:
    items, read = HISTORIES[case]
    answer = await ask(http, input=items)
    assert answer["status"] == "completed" and [item["type"] for item in answer["output"]] == ["message"]
    assert answer["output"][0]["content"][0]["text"] == TEXT
    assert prompt_of(backend) == f"{read}<assistant>"


async def test_streaming_response(http: httpx.AsyncClient) -> None:
    events = await stream(http, input=[said("user", "Count from 1 to 5.")])
    assert steps(events) == ["response.created", "response.in_progress", *MESSAGE, "response.completed"]
    assert events[-1]["response"]["status"] == "completed"


LOCATION = {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]}
WEATHER = {"type": "function", "name": "get_weather", "description": "The weather of a place.", "parameters": LOCATION}
ASKED = {"input": [said("user", "What's the weather like in San Francisco?")], "tools": [WEATHER]}
ARGUMENTS = '{"location": "San Francisco, CA"}'


async def test_tool_calling(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    backend.answer = WRITE["hermes"](Call("get_weather", ARGUMENTS))
    answer = await ask(http, **ASKED)
    [call] = answer["output"]
    assert (call["type"], call["name"], call["status"]) == ("function_call", "get_weather", "completed")
    assert json.loads(call["arguments"]) == json.loads(ARGUMENTS) and call["call_id"]


async def test_tool_calling_streaming(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    backend.answer = WRITE["hermes"](Call("get_weather", ARGUMENTS))
    events = await stream(http, **ASKED)
    assert steps(events) == ["response.created", "response.in_progress", *CALL, "response.completed"]
    assert [event["item"]["type"] for event in events if "item" in event] == ["function_call"] * 2
    deltas = [event["delta"] for event in events if event["type"].endswith("arguments.delta")]
    assert json.loads("".join(deltas)) == json.loads(ARGUMENTS)


async def test_image_input_is_refused_by_its_name(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    """The suite wants an answer; the models here read no images."""
    image = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    asked = body_of(input=[said("user", [{"type": "input_text", "text": "What do you see?"}, image])])
    refused = await http.post(PATH, json=asked)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "input"
    assert "no images" in refused.json()["error"]["message"] and "iVBOR" not in refused.text
    assert not backend.submitted


async def test_compaction_is_not_there(http: httpx.AsyncClient) -> None:
    for action in ("compact", "input_tokens"):
        refused = await http.post(f"{PATH}/{action}", json={"input": "Hi"})
        assert refused.status_code == 404 and refused.json()["error"]["code"] == "not_found"
    assert (await http.post(f"{PATH}/compact", headers={"Authorization": "Bearer wrong"})).status_code == 401
