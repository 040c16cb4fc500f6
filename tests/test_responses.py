"""A body of /v1/responses becomes the body of the chat it asks for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import InvalidRequest, PromptTooLong
from cloister.responses import chat_body, chat_fields, renamed, responses_fields


def chat(**body: Any) -> dict[str, Any]:
    return dict(json.loads(chat_body(json.dumps(body).encode())))


def test_a_text_is_a_message_of_the_user_after_the_instructions() -> None:
    assert chat(model="m", input="Hi") == {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    said = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
    assert chat(input="Hi", instructions="Be short.")["messages"] == said


def test_items_become_messages_and_calls_join_the_turn_they_belong_to() -> None:
    items = [
        {"role": "developer", "content": "Be kind.", "public": True},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather "}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {
            **{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"},
            "content": [{"type": "output_text", "text": "I ask.", "annotations": [], "logprobs": []}],
        },
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": '{"at": "Ulm"}'},
        {"type": "function_call", "call_id": "c2", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "sun"}]},
        {"type": "function_call", "call_id": "c3", "name": "look", "arguments": "{}"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    ]
    calls = [
        {"id": name, "type": "function", "function": {"name": "look", "arguments": arguments}}
        for name, arguments in (("c1", '{"at": "Ulm"}'), ("c2", "{}"), ("c3", "{}"))
    ]
    assert chat(input=items)["messages"] == [
        {"role": "developer", "content": "Be kind.", "public": True},
        {"role": "user", "content": [{"type": "text", "text": "Weather "}]},
        {"role": "assistant", "content": [{"type": "text", "text": "I ask."}], "tool_calls": calls[:2]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "sun"}]},
        {"role": "assistant", "tool_calls": calls[2:]},
        {"role": "assistant", "content": [{"type": "text", "text": "No."}]},
    ]


def test_of_a_part_that_is_no_text_only_its_kind_goes_on() -> None:
    parts = [{"type": "input_image", "image_url": "data:…"}, "bare", {"type": {"a": 1}}]
    content = chat(input=[{"role": "user", "content": parts}])["messages"][0]["content"]
    assert content == [{"type": "input_image"}, {"type": None}, {"type": {"a": 1}}]


def test_limits_formats_and_logprobs_have_the_names_of_a_chat() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    form = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    given = chat(input="a", max_output_tokens=7, text={"format": form, "verbosity": "low"}, reasoning={"effort": "low"})
    assert given["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": schema, "strict": True},
    }
    assert list(given["response_format"]["json_schema"]["schema"]["properties"]) == ["b", "a"], "a form has an order"
    assert (given["max_completion_tokens"], given["verbosity"], given["reasoning_effort"]) == (7, "low", "low")
    assert chat(input="a", text={"format": {"type": "json_object"}})["response_format"] == {"type": "json_object"}
    assert "response_format" not in chat(input="a", text={"format": None})
    assert chat(input="a", include=["message.output_text.logprobs"])["logprobs"] is True
    assert chat(input="a", top_logprobs=3)["logprobs"] is True
    assert "logprobs" not in chat(input="a", top_logprobs=0, include=["reasoning.encrypted_content"])


def test_functions_are_tools_of_a_chat() -> None:
    look = {"name": "look", "description": "See.", "parameters": {"type": "object"}, "strict": True}
    find = {"name": "find", "parameters": {}}
    tools = [{"type": "function", **look}, {"type": "function", **find}]
    nested = [{"type": "function", "function": look}, {"type": "function", "function": find}]
    given = chat(input="a", tools=tools, tool_choice="required", parallel_tool_calls=False)
    assert (given["tools"], given["tool_choice"], given["parallel_tool_calls"]) == (nested, "required", False)
    named = chat(input="a", tools=tools, tool_choice={"type": "function", "name": "find"})
    assert named["tool_choice"] == {"type": "function", "function": {"name": "find"}}
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "find"}]}
    some = chat(input="a", tools=tools, tool_choice=allowed)
    assert (some["tools"], some["tool_choice"]) == (nested[1:], "auto")


def test_all_else_goes_on_as_it_is_and_what_asks_for_nothing_is_left_out() -> None:
    same = {"model": "m", "temperature": 0.1, "top_p": 0.5, "stream": True, "seed": 2**63 - 1, "protection": "isolated"}
    same |= {"session": "s", "metadata": {"a": "b"}, "user": "u", "protecton": 1, "stop": ["a"]}
    nothing = {"store": False, "previous_response_id": None, "conversation": None, "background": False, "prompt": None}
    nothing |= {"truncation": "disabled", "stream_options": {"include_obfuscation": False}, "max_tool_calls": 3}
    given = chat(input="a", reasoning=None, text=None, include=None, instructions=None, **same, **nothing)
    assert given == {**same, "messages": [{"role": "user", "content": "a"}]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "secret"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"context_management": [{"type": "secret"}]}, "context_management"),
        ({"messages": []}, "messages"),
        ({"max_tokens": 3}, "max_tokens"),
        ({"max_completion_tokens": 3}, "max_completion_tokens"),
        ({"response_format": {"type": "secret"}}, "response_format"),
        ({"n": 2}, "n"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": ["secret"]}, "tools"),
        ({"tool_choice": {"type": "secret"}}, "tool_choice"),
        ({"tools": [], "tool_choice": {"type": "allowed_tools", "tools": 7, "mode": {"secret": 1}}}, "tool_choice"),
        ({"text": {"fromat": {"type": "secret"}}}, "text"),
        ({"text": "secret"}, "text"),
        ({"include": "secret"}, "include"),
        ({"reasoning": "secret"}, "reasoning"),
        ({"input": 7}, "input"),
        ({"input": ["secret"]}, "input"),
        ({"input": [{"type": "item_reference", "id": "secret"}]}, "input"),
        ({"input": [{"id": "secret"}]}, "input"),
        ({"input": [{"type": "computer_call", "id": "secret"}]}, "input"),
        ({"input": {"sealed": 1}, "instructions": "secret"}, "instructions"),
    ],
)
def test_what_a_chat_cannot_do_is_refused_by_name_and_without_the_users_words(fields: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        chat(**{"model": "m", "input": "a", **fields})
    assert refused.value.param == param and "secret" not in str(refused.value)


@pytest.mark.parametrize("raw", [b"", b"[]", b"7", b"{", b'{"input": NaN}', b"[" * 100_000, b'{"input": "\xff"}'])
def test_what_is_no_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"not (a|valid) JSON"):
        chat_body(raw)


def test_a_name_twice_is_refused_before_one_is_lost() -> None:
    with pytest.raises(InvalidRequest, match="'role' is given twice"):
        chat_body(b'{"input": [{"role": "system", "role": "user", "content": "a"}]}')


def test_a_refusal_speaks_of_this_paths_fields() -> None:
    wrong = renamed(PromptTooLong("messages[2]: messages: it is long.", param="messages", hint="Shorten."))
    assert (str(wrong), wrong.param) == ("input: messages: it is long. Shorten.", "input")
    other = InvalidRequest("temperature: no.", param="temperature")
    assert str(renamed(other)) == "temperature: no." and isinstance(renamed(KeyError("a")), KeyError)


values = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5)
trees = st.recursive(values, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner))
NAMES = ["input", "instructions", "text", "tools", "tool_choice", "include", "reasoning", "top_logprobs", "store", "x"]


@given(st.dictionaries(st.sampled_from(NAMES), trees))
def test_any_json_is_translated_or_refused(body: dict[str, Any]) -> None:
    try:
        given_back = chat(**body)
    except InvalidRequest:
        return
    assert not given_back.keys() & {"input", "instructions", "text", "include", "store"}


def test_what_a_client_leaves_in_the_clear_is_read_again_as_it_was() -> None:
    """A node gets the fields that the client did not seal, and the numbers of what it did."""
    clear = {"model": "m", "messages": {"sealed": 1}, "max_completion_tokens": 5, "logprobs": True, "top_logprobs": 2}
    for more in ({}, {"response_format": {"sealed": 1}}, {"response_format": {"type": "json_object"}}):
        fields = {**clear, "tools": {"sealed": 1}, "tool_choice": "auto", **more}
        sent = responses_fields(fields)
        assert not sent.keys() & {"messages", "max_completion_tokens", "response_format"}
        assert chat_fields(sent) == fields
