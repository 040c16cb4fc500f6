"""A conversation with calls through the whole node: the default model calls a function when it has seen how."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.serving.test_openai import connected

pytestmark = pytest.mark.slow
LEVELS = ("open", "partitioned", "isolated")
MORE_CASES = (("plain", "partitioned"), ("verified", "open"), ("verified", "isolated"))
WAYS = pytest.mark.parametrize("way", ["plain", "verified"])
A_WAY = pytest.mark.parametrize("way", ["verified", pytest.param("plain", marks=pytest.mark.release)])

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


@pytest.mark.parametrize(
    ("way", "level"),
    [
        *(("plain", "open"), ("plain", "isolated"), ("verified", "partitioned")),
        *(pytest.param(*case, marks=pytest.mark.release) for case in MORE_CASES),
    ],
)
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


@A_WAY
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


def tool(name: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


CHOICES: Any = [
    tool("weather", city={"enum": ["Lyon", "Rome"]}),
    tool("clock", hour={"type": "integer", "maximum": 23}),
]
NAMED: Any = {"type": "function", "function": {"name": "clock"}}


@WAYS
def test_a_call_that_is_required_is_made_at_every_level_alike(way: str, short_server: str) -> None:
    """The model has not seen how, and knows nothing: the form is right whatever it says."""
    with connected(way, short_server) as connect:
        client = connect("cloister-dev")
        model = client.models.list().data[0].id
        made = []
        for level in LEVELS:
            more: Any = {
                "model": model,
                "tools": CHOICES,
                "temperature": 0,
                "max_tokens": 200,
                "messages": [asked("Rome")],
            }
            more |= {"extra_body": {"protection": level}, "parallel_tool_calls": False}
            found = []
            for choice in ("required", NAMED):
                answer = client.chat.completions.create(tool_choice=choice, **more).choices[0]
                [call] = answer.message.tool_calls or []
                found.append((answer.finish_reason, call.function.name, json.loads(call.function.arguments)))
            assert [finish for finish, *_ in found] == ["tool_calls"] * 2
            assert found[1][1] == "clock" and found[1][2]["hour"] <= 23
            assert found[0][1] != "weather" or found[0][2]["city"] in ("Lyon", "Rome")
            pieces = [*client.chat.completions.create(tool_choice=NAMED, stream=True, **more)]
            streamed = [call for piece in pieces for call in (piece.choices[0].delta.tool_calls or ())]
            assert "".join(call.function.arguments or "" for call in streamed) and streamed[0].function.name == "clock"
            made.append(found)
        assert made[0] == made[1] == made[2]


@WAYS
def test_responses_call_too(way: str, short_server: str) -> None:
    with connected(way, short_server) as connect:
        client = connect("cloister-dev")
        model = client.models.list().data[0].id
        one: Any = {"type": "function", "strict": True, **CHOICES[1]["function"]}
        for level in ("open", "partitioned", "obfuscated"):
            asking: Any = {
                "model": model,
                "input": "<redacted>Ann Miller</redacted> asks: what time is it?",
                "tools": [one],
                "tool_choice": "required",
            }
            asking["parallel_tool_calls"] = False
            answer = client.responses.create(**asking, temperature=0, extra_body={"protection": level})
            [call] = answer.output
            assert call.type == "function_call" and json.loads(call.arguments)["hour"] <= 23


def test_a_required_call_has_no_second_form(short_server: str) -> None:
    with connected("plain", short_server) as connect:
        client = connect("cloister-dev")
        model = client.models.list().data[0].id
        for level in ("open", "isolated"):
            form: Any = {"response_format": {"type": "json_object"}, "extra_body": {"protection": level}}
            with pytest.raises(openai.BadRequestError) as refused:
                client.chat.completions.create(
                    model=model, messages=[asked("Rome")], tools=CHOICES, tool_choice="required", **form
                )
            assert refused.value.param == "tool_choice"


@WAYS
def test_an_answer_that_may_call_calls_or_has_its_form_at_every_level_alike(way: str, short_server: str) -> None:
    with connected(way, short_server) as connect:
        client = connect("cloister-dev")
        schema = {"name": "answer", "schema": CHOICES[1]["function"]["parameters"]}
        asking: Any = {"model": client.models.list().data[0].id, "tools": CHOICES, "temperature": 0, "max_tokens": 200}
        asking |= {"parallel_tool_calls": False, "response_format": {"type": "json_schema", "json_schema": schema}}
        made = []
        for level in ("open", "partitioned", "isolated"):
            more = {**asking, "messages": [asked("Rome")], "extra_body": {"protection": level}}
            answer = client.chat.completions.create(**more).choices[0]
            calls = [(call.function.name, call.function.arguments) for call in answer.message.tool_calls or ()]
            assert answer.finish_reason == ("tool_calls" if calls else "stop")
            assert calls or json.loads(answer.message.content or "")["hour"] <= 23
            made.append((calls, answer.message.content))
        assert made[0] == made[1] == made[2]
