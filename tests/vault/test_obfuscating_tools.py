"""Tools at `obfuscated`: they, calls and results have substitutes like any text, and each variant its own calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cloister.errors import InvalidRequest, ObfuscationRefused
from cloister.messages.controller_vault import Answered, AssignPrompt
from cloister.messages.prompts import (
    ChatPrompt,
    ObfuscationParams,
    ObfuscationSecrets,
    PromptCall,
    PromptMessage,
    write_prompt,
)
from cloister.messages.types import SamplingParams
from cloister.tools.families import Parsing
from tests.vault.node import Room

NAMES = ("Ann", "Bob", "Eve")
TAGGED = "<redacted>Ann</redacted>"


def tools(description: str = "Finds people.", **function: Any) -> str:
    tool = {"type": "function", "function": {"name": "find", "description": description, **function}}
    return json.dumps({"tools": [tool], "choice": "auto", "parallel": True})


def call(arguments: Any, **more: str) -> PromptCall:
    return PromptCall(**{"id": "a", "name": "find", "arguments": json.dumps(arguments), **more})


def prompts(room: Room, number: int, *messages: PromptMessage, **more: Any) -> dict[str, int]:
    """What is prefilled, and the place of each."""
    hidden = ObfuscationSecrets(bytes([number]) * 32, tuple((name,) for name in NAMES[1:]))
    prompt = ChatPrompt(messages, hidden, **{"tools": tools(), **more})
    params, hiding = SamplingParams(max_tokens=8, stop_tokens=(0,)), room.vault._obfuscating
    hiding.add(AssignPrompt(number, "obfuscated", write_prompt(prompt), params, obfuscation=ObfuscationParams(fakes=2)))
    found = hiding.work(number)
    assert found is not None
    return {bytes(one.prompt).decode(): place for place, one in enumerate(found)}


def said(name: str, more: str = "", described: str = "Finds people.") -> str:
    return json.dumps({"tools": json.loads(tools(described))["tools"]}) + f"I am {name}." + more


def test_tools_and_results_have_substitutes(room: Room) -> None:
    described = f'Finds "{TAGGED}".'
    user, called = PromptMessage("user", "I am Ann."), PromptMessage("tool", "ANN is in; ann, too.", call_id="a")
    found = prompts(room, 1, user, called, tools=tools(described))
    assert set(found) == {
        said(name, f"{name.upper()} is in; {name.lower()}, too." + '{"tool_call_id": "a"}', f'Finds "{name}".')
        for name in NAMES
    }


def test_each_variant_goes_on_with_its_own_calls(room: Room) -> None:
    user = PromptMessage("user", f"I am {TAGGED}.")
    places = prompts(room, 1, user)
    assert set(places) == {said(name) for name in NAMES}
    answers = {
        "Ann": 'Let us see.\n<tool_call>\n{"name": "find", "arguments": {"who": "Ann", "n": 1}}\n</tool_call>',
        "Bob": '<tool_call>{"name": "find", "arguments": {"whom": ["Bob"]}}</tool_call>',
        "Eve": "I know her.",
    }
    streams = {places[said(name)]: tuple(f"{text}\0 more".encode()) for name, text in answers.items()}
    room.say(Answered(1, tuple(streams[place] for place in range(3))))
    given = PromptMessage("assistant", "Let us see.", False, (call({"who": "Ann", "n": 1}),))
    result = PromptMessage("tool", "Ann: 42", call_id="a")

    def goes_on(name: str, content: str, arguments: Any) -> str:
        calls = [{"id": "a", "type": "function", "function": {"name": "find", "arguments": arguments}}]
        named = {"name": "find"} if arguments else {}
        made = json.dumps({"tool_calls": calls}) if arguments else ""
        return said(name, f"{content}{made}{name}: 42" + json.dumps({"tool_call_id": "a", **named}))

    assert set(prompts(room, 2, user, given, result)) == {
        goes_on("Ann", "Let us see.", {"who": "Ann", "n": 1}),
        goes_on("Bob", "", {"whom": ["Bob"]}),
        goes_on("Eve", "I know her.", None),
    }
    other = PromptMessage("assistant", "Let us see.", False, (call({"who": "Ann", "n": 2}),))
    with pytest.raises(ObfuscationRefused, match="not given in this session"):
        prompts(room, 3, user, other, result)


@pytest.mark.parametrize(
    ("messages", "more", "field"),
    [
        ([PromptMessage("assistant", "", False, (call({}, id="ann"),))], {}, "messages"),
        ([PromptMessage("assistant", "", False, (call({}, name="ann"),))], {}, "messages"),
        ([PromptMessage("assistant", "", False, (call({"Ann": 1}),))], {}, "messages"),
        ([PromptMessage("tool", "x", call_id="ann")], {}, "messages"),
        ([], {"tools": tools(parameters={"properties": {"ann": {}}})}, "tools"),
        ([], {"template": '{"style": "like Ann"}'}, "chat_template_kwargs"),
        ([], {"template": '{"ann": 1}'}, "chat_template_kwargs"),
    ],
)
def test_a_secret_where_nothing_can_stand_in_its_place_is_refused(
    room: Room, messages: list[PromptMessage], more: dict[str, str], field: str
) -> None:
    with pytest.raises(ObfuscationRefused) as refused:
        prompts(room, 1, *messages, PromptMessage("user", f"I am {TAGGED}."), **more)
    assert refused.value.param == field and "nn" not in str(refused.value).replace("annot", "")


def test_a_number_that_is_a_secret_is_refused(room: Room) -> None:
    number = PromptMessage("assistant", "", False, (call({"n": 42}),))
    with pytest.raises(ObfuscationRefused):
        prompts(room, 1, number, PromptMessage("user", "I am <redacted>42</redacted>."))


def test_malformed_tools_are_refused(room: Room) -> None:
    with pytest.raises(InvalidRequest):
        prompts(room, 1, PromptMessage("user", f"I am {TAGGED}."), tools='{"tools": [1]}')


def test_answers_come_back_without_their_reasoning_and_surplus_calls(room: Room) -> None:
    room.vault._obfuscating._parsing = Parsing("<think></think>")
    user, one = PromptMessage("user", f"I am {TAGGED}."), json.loads(tools())
    single = json.dumps({**one, "parallel": False})
    places = prompts(room, 1, user, tools=single)
    made = '<tool_call>{"name": "find", "arguments": {}}</tool_call>'
    streams = {places[said(name)]: f"<think>{name}?</think>{name}{made * 2}\0".encode() for name in NAMES}
    room.say(Answered(1, tuple(tuple(streams[place]) for place in range(3))))
    for number, reasoning in ((2, ""), (3, "Ann?")):
        given = PromptMessage("assistant", "Ann", False, (call({}),), "", reasoning)
        found = prompts(room, number, user, given, PromptMessage("user", "So?"), tools=single)
        assert len(found) == 3 and all(text.count('"name": "find", "arguments"') == 1 for text in found)
        assert ["Bob?" in text for text in found].count(True) == bool(reasoning), (
            "each its own reasoning, where it counts"
        )
        assert not any("Ann" in text for text in found if "Bob" in text or "Eve" in text)
