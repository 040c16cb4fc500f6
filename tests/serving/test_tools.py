"""A conversation with calls through the whole node: the default model calls a function when it has seen how."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.serving.test_openai import connected

pytestmark = pytest.mark.slow

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


def asked(city: str) -> dict[str, Any]:
    return {"role": "user", "content": f"What is the weather in {city}?"}


def earlier(city: str, degrees: int) -> list[Any]:
    call = {
        "id": city,
        "type": "function",
        "function": {"name": "get_weather", "arguments": json.dumps({"city": city})},
    }
    return [
        asked(city),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": city, "content": f"{degrees} degrees"},
        {"role": "assistant", "content": f"It is {degrees} degrees in {city}."},
    ]


MESSAGES = [*earlier("Paris", 12), *earlier("Rome", 20), *earlier("Oslo", 3), asked("Madrid")]


@pytest.mark.parametrize("level", ["open", "partitioned", "isolated"])
@pytest.mark.parametrize("way", ["plain", "verified"])
def test_the_model_calls_and_answers_with_the_result(way: str, level: str, real_server: str) -> None:
    with connected(way, real_server) as connect:
        client = connect("cloister-dev")
        model = client.models.list().data[0].id
        more: dict[str, Any] = {"model": model, "tools": TOOLS, "temperature": 0, "extra_body": {"protection": level}}
        first = client.chat.completions.create(messages=MESSAGES, max_tokens=60, **more)
        choice, prompt_tokens = first.choices[0], first.usage and first.usage.prompt_tokens
        [call] = choice.message.tool_calls or []
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Madrid"})
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        result = {"role": "tool", "tool_call_id": call.id, "content": "25 degrees"}
        messages = [*MESSAGES, choice.message.model_dump(exclude_none=True), result]
        with client.chat.completions.stream(messages=messages, max_tokens=30, **more) as stream:
            for _ in stream:
                pass
            last = stream.get_final_completion().choices[0]
    assert (last.finish_reason, last.message.content) == ("stop", "It is 25 degrees in Madrid.")
    assert prompt_tokens == 412, "the same prompt at every level, in the clear and sealed"


@pytest.mark.parametrize("way", ["plain", "verified"])
def test_at_obfuscated_a_call_with_a_secret_goes_on_in_its_session(way: str, real_server: str) -> None:
    marked = asked('<redacted category="place">Madrid</redacted>')
    hidden: dict[str, Any] = {"protection": "obfuscated", "session": f"tools-{way}"}
    hidden["obfuscation"] = {"substitutes": [["Vienna"], ["Lisbon"]]}
    with connected(way, real_server) as connect:
        client = connect("cloister-dev")
        more: dict[str, Any] = {"model": client.models.list().data[0].id, "tools": TOOLS, "temperature": 0}
        more["extra_body"] = hidden
        messages: list[Any] = [*MESSAGES[:-1], marked]
        with client.chat.completions.stream(messages=messages, max_tokens=60, **more) as stream:
            for _ in stream:
                pass
            choice = stream.get_final_completion().choices[0]
        [call] = choice.message.tool_calls or []
        assert (choice.finish_reason, json.loads(call.function.arguments)) == ("tool_calls", {"city": "Madrid"})
        messages.append(choice.message.model_dump(exclude_none=True, exclude={"parsed"}))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "25 degrees in Madrid"})
        last = client.chat.completions.create(messages=messages, max_tokens=30, **more).choices[0]
    assert (last.finish_reason, last.message.content) == ("stop", "It is 25 degrees in Madrid.")
