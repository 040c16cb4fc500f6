"""Grammars of answers that must call: llguidance takes them, and they allow calls in their family's manner alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cloister.grammar.constraint import answer_part
from cloister.tools.base import Call
from cloister.tools.families import FamilyName, Parsing
from cloister.tools.form import lark_of
from cloister.tools.offered import read_offered, written
from tests.tools.test_parsers import WEATHER, WRITE, whole

llguidance = pytest.importorskip("llguidance")

CITY = {"$ref": "#/$defs/city"}
PARAMETERS = {"type": "object", "properties": {"city": CITY}, "required": ["city"], "additionalProperties": False}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {
        "name": "get_weather", "parameters": {**PARAMETERS, "$defs": {"city": {"type": "string"}}}}},
    {"type": "function", "function": {"name": "add"}},
]  # fmt: skip
ADD = Call("add", '{"x": 1, "y": [true, null]}')


def follows(grammar: str, text: str) -> bool:
    """Whether the whole text is an answer, by a vocabulary of bytes."""
    tokenizer = llguidance.LLTokenizer("byte")
    matcher = llguidance.LLMatcher(tokenizer, llguidance.grammar_from("lark", grammar))
    assert not matcher.is_error(), matcher.get_error()
    tokens = tokenizer.tokenize_bytes(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and bool(matcher.is_accepting())


@pytest.mark.parametrize("family", WRITE)
def test_calls_follow_and_words_do_not(family: FamilyName) -> None:
    parsing = Parsing(named=family)
    grammar = lark_of(parsing, TOOLS)
    for calls in ([WEATHER], [ADD], [WEATHER, ADD, WEATHER]):
        text = WRITE[family](*calls)
        assert follows(grammar, text), text
        assert [call.name for call in whole(parsing.parser(tools=True), text).calls] == [call.name for call in calls]
    for text in ("Hello", "", WRITE[family](WEATHER)[:-1], WRITE[family](Call("other", "{}"))):
        assert not follows(grammar, text), text
    assert family == "gemma" or not follows(grammar, WRITE[family](Call("get_weather", '{"town": "x"}')))


@pytest.mark.parametrize("family", [family for family in WRITE if family != "gemma"])
def test_one_call_where_several_are_not_wanted(family: FamilyName) -> None:
    grammar = lark_of(Parsing(named=family), TOOLS, parallel=False)
    assert follows(grammar, WRITE[family](WEATHER)) and not follows(grammar, WRITE[family](WEATHER, WEATHER))


def test_a_function_has_the_arguments_that_it_names() -> None:
    """Unless its schema allows others: a client would call it with what it does not take."""

    def may(**parameters: Any) -> bool:
        given = {"type": "object", "properties": {"x": {"type": "integer"}}, **parameters}
        tools = [{"type": "function", "function": {"name": "add", "parameters": given}}]
        grammar = lark_of(Parsing(named="hermes"), tools)
        assert follows(grammar, WRITE["hermes"](Call("add", '{"x": 1}')))
        return follows(grammar, WRITE["hermes"](Call("add", '{"x": 1, "y": 2}')))

    assert not may() and may(additionalProperties=True) and may(patternProperties={"^y$": {}})
    nothing = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
    grammar = lark_of(Parsing(named="hermes"), nothing)
    assert follows(grammar, WRITE["hermes"](Call("add", "{}"))) and not follows(grammar, WRITE["hermes"](ADD))


@pytest.mark.parametrize(
    ("choice", "parallel", "several"),
    [
        ("required", None, True),
        ("required", False, False),
        ({"type": "function", "function": {"name": "add"}}, None, False),
    ],
)
def test_a_function_that_is_named_is_called_once(choice: Any, parallel: bool | None, several: bool) -> None:
    offered = read_offered(written(TOOLS, choice, parallel))
    assert offered is not None and offered.parallel is several


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("tools [TOOL_CALLS] [ARGS]", "[TOOL_CALLS]add[ARGS]{}[TOOL_CALLS]add[ARGS]{}"),
        ("tools <start_function_call>", "<start_function_call>call:add{a:<escape>b<escape>}<end_function_call>"),
    ],
)
def test_other_manners_of_a_family(template: str, text: str) -> None:
    assert follows(lark_of(Parsing(template), TOOLS), text)


def test_a_model_that_has_begun_to_think_thinks_first() -> None:
    parsing = Parsing("<think></think>", {}, {None: "<think>\n"})
    grammar, call = lark_of(parsing, TOOLS), WRITE["hermes"](WEATHER)
    assert follows(grammar, f"why < not?\n</think>\n\n{call}") and not follows(grammar, call)
    assert follows(lark_of(parsing, TOOLS, thinks=False), call)


def test_special_tokens_are_named_by_number() -> None:
    grammar = lark_of(Parsing("tools [TOOL_CALLS]", {5: "[TOOL_CALLS]"}), TOOLS)
    assert "<[5]>" in grammar and json.dumps("[TOOL_CALLS]") not in grammar


def test_values_of_qwen3_coder_have_the_types_of_their_schema() -> None:
    properties = {
        "text": {"type": "string"},
        "kind": {"enum": ["a", "b"]},
        "count": {"type": "integer"},
        "either": {"anyOf": [{"$ref": "#/$defs/text"}, {"type": "null"}]},
    }
    parameters = {"properties": properties, "required": ["count"], "$defs": {"text": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    grammar = lark_of(Parsing(named="qwen3_coder"), tools)
    for arguments in ({"count": 1}, {"text": "a <b>\n c", "kind": "b", "count": 1, "either": "x"}):
        text = WRITE["qwen3_coder"](Call("f", json.dumps(arguments)))
        assert follows(grammar, text), text
        assert json.loads(whole(Parsing(named="qwen3_coder").parser(tools=True), text).calls[0].arguments) == arguments
    for wrong in ({}, {"count": "x"}, {"kind": "c", "count": 1}, {"count": 1, "text": "in another order"}):
        assert not follows(grammar, WRITE["qwen3_coder"](Call("f", json.dumps(wrong)))), wrong


NAMED = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
FORMS = {
    json.dumps({"json_schema": NAMED}): '{"name": "/"}',
    '{"json_object": true}': '{"a": [1]}',
    '{"regex": "a/\\\\/[/]\\n"}': "a///\n",
    '{"choice": ["yes", "no \\"%"]}': 'no "%',
}


@pytest.mark.parametrize("family", WRITE)
@pytest.mark.parametrize("form", FORMS)
def test_an_answer_calls_or_has_its_form(family: FamilyName, form: str) -> None:
    parsing, said = Parsing(named=family), FORMS[form]
    grammar = lark_of(parsing, TOOLS, answer=answer_part(form))
    text = f"<|channel|>final<|message|>{said}" if family == "harmony" else said
    assert follows(grammar, text) and whole(parsing.parser(tools=True), text).content == said
    call = WRITE[family](WEATHER)
    assert follows(grammar, call) and whole(parsing.parser(tools=True), call).calls
    for wrong in ("Hello", call + text, f"{text} {call}"):
        assert not follows(grammar, wrong), wrong


def test_a_form_follows_the_thoughts_that_a_prompt_begins() -> None:
    grammar = lark_of(Parsing("<think></think>", {}, {None: "<think>\n"}), (), answer=answer_part('{"regex": "a+"}'))
    assert follows(grammar, "why\n</think>\n\naa") and not follows(grammar, "aa")


def test_a_grammar_is_no_part_of_another() -> None:
    assert not answer_part('{"grammar": "start: A"}')
