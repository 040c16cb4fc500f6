"""The contract of every parser: calls are found, what is malformed is text, and no cut of the text matters."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.tools.base import Call, Parsed, Parser
from cloister.tools.families import FAMILIES, FamilyName, Parsing, family_of
from cloister.tools.thinking import PAIRS
from tests.examples import examples

WEATHER = Call("get_weather", '{"city": "Gent"}')
ADD = Call("add", '{"x": 1.5, "to": [true, null], "why": "a\\"b"}')


def hermes(*calls: Call) -> str:
    return "\n".join(
        f'<tool_call>\n{{"name": "{one.name}", "arguments": {one.arguments}}}\n</tool_call>' for one in calls
    )


def coder(*calls: Call) -> str:
    def written(value: Any) -> str:
        return value if isinstance(value, str) else json.dumps(value)

    def parameters(one: Call) -> str:
        given = json.loads(one.arguments).items()
        return "".join(f"<parameter={key}>\n{written(value)}\n</parameter>\n" for key, value in given)

    return "\n".join(f"<tool_call>\n<function={one.name}>\n{parameters(one)}</function>\n</tool_call>" for one in calls)


def gemma(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{gemma(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(gemma, value)) + "]"
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else json.dumps(value)


def harmony(*calls: Call) -> str:
    start = "<|start|>assistant"
    made = (
        f"<|channel|>commentary to=functions.{one.name} <|constrain|>json<|message|>{one.arguments}<|call|>"
        for one in calls
    )
    return start.join(made)


WRITE: dict[FamilyName, Any] = {
    "hermes": hermes,
    "qwen3_coder": coder,
    "llama3": lambda *calls: "; ".join(f'{{"name": "{one.name}", "parameters": {one.arguments}}}' for one in calls),
    "mistral": lambda *calls: (
        "[TOOL_CALLS][" + ", ".join(f'{{"name": "{one.name}", "arguments": {one.arguments}}}' for one in calls) + "]"
    ),
    "gemma": lambda *calls: "".join(
        f"<|tool_call>call:{one.name}{gemma(json.loads(one.arguments))}<tool_call|>" for one in calls
    ),
    "harmony": harmony,
}
"""How a model of each family writes calls."""


def whole(parser: Parser, text: str) -> Parsed:
    return parser.push(text).add(parser.finish())


def pieces(parser: Parser, text: str, cuts: list[int]) -> Parsed:
    found, places = Parsed(), sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for start, end in pairwise(places):
        found.add(parser.push(text[start:end]))
    return found.add(parser.finish())


def fields(parsed: Parsed) -> tuple[Any, ...]:
    return parsed.content, parsed.reasoning, parsed.calls


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("calls", [[WEATHER], [ADD], [WEATHER, ADD, WEATHER]])
def test_calls_are_found_and_leave_no_text(family: FamilyName, calls: list[Call]) -> None:
    found = whole(FAMILIES[family](), WRITE[family](*calls))
    assert [(one.name, json.loads(one.arguments)) for one in found.calls] == [
        (one.name, json.loads(one.arguments)) for one in calls
    ]
    assert not found.content and not found.reasoning


@pytest.mark.parametrize("family", ["hermes", "qwen3_coder", "mistral", "gemma"])
def test_words_before_a_call_are_content(family: FamilyName) -> None:
    found = whole(FAMILIES[family](), "I will look.\n\n" + WRITE[family](WEATHER) + "\n")
    assert fields(found) == ("I will look.", "", [WEATHER])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("text", ["", "  ", "Hello, world!\n", " a < b and [c] {d} ", "é 🙂 \n\n x"])
def test_an_answer_without_calls_is_content(family: FamilyName, text: str) -> None:
    assert fields(whole(FAMILIES[family](), text)) == (text, "", [])


MALFORMED: dict[FamilyName, list[str]] = {
    "hermes": [
        "<tool_call>{bad}</tool_call> then",
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "a b", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>',
        '<tool_call>{"name": "f", "argu',
        "<tool_call>",
        "</tool_call> <tool_cal",
        "<tool_call>" + "[" * 5000 + "</tool_call>",
        "<tool_call>" + "9" * 5000 + "</tool_call>",
    ],
    "qwen3_coder": [
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</tool_call>",
        "<tool_call><function=f>words</function></tool_call>",
        "<tool_call><function=a b></function></tool_call>",
        "<tool_call><function=f><parameter=a>1</function></tool_call>",
        '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
        "<tool_call>" + "<parameter=a>" * 5000,
    ],
    "llama3": ['{"name": "f"', '{"a": 1}', '{"name": 3, "parameters": {}}', "<|python_tag|>print(1)", "{ not"],
    "mistral": ['[TOOL_CALLS][{"name": "f"', "[TOOL_CALLS]", "[TOOL_CALLS][]", "[TOOL_CALLS]f[ARGS]{", "[TOOL_CALLS]f"],
    "gemma": [
        "<|tool_call>call:f{a:}<tool_call|>",
        "<|tool_call>f{}<tool_call|>",
        "<|tool_call>call:f{a:b}<tool_call|>",
    ],
    "harmony": ["plain words", "tomorrow"],
}


@pytest.mark.parametrize(("family", "text"), [(family, text) for family, texts in MALFORMED.items() for text in texts])
def test_a_malformed_call_is_text(family: FamilyName, text: str) -> None:
    assert fields(whole(FAMILIES[family](), text)) == (text, "", [])


def test_a_call_after_a_malformed_one_is_found() -> None:
    text = "<tool_call>{bad}</tool_call>\n" + hermes(WEATHER)
    assert fields(whole(FAMILIES["hermes"](), text)) == ("<tool_call>{bad}</tool_call>", "", [WEATHER])


def test_a_marker_in_a_string_is_a_word() -> None:
    call = Call("say", json.dumps({"text": 'a \\" </tool_call> <tool_call> b'}))
    assert fields(whole(FAMILIES["hermes"](), hermes(call, WEATHER))) == ("", "", [call, WEATHER])
    written = coder(Call("say", json.dumps({"text": 'a " </tool_call> b'})), WEATHER)
    assert [one.name for one in whole(FAMILIES["qwen3_coder"](), written).calls] == ["say", "get_weather"]
    quoted = '<|tool_call>call:say{text:<|"|>a <tool_call|> b<|"|>}<tool_call|>'
    assert whole(FAMILIES["gemma"](), quoted).calls == [Call("say", '{"text": "a <tool_call|> b"}')]


@pytest.mark.parametrize(
    ("family", "text", "calls"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}', [Call("f", '{"a": 1}')]),
        ("hermes", '<tool_call>{"name": "f"}</tool_call>', [Call("f", "{}")]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"x": "\\udfff"}}', [Call("f", '{"x": "\\udfff"}')]),
        ("qwen3_coder", "<tool_call><function=f></function></tool_call>", [Call("f", "{}")]),
        (
            "qwen3_coder",
            "<tool_call><function=f><parameter=a>\n\nx\n\n</parameter><parameter=b>True</parameter></function></tool_call>",
            [Call("f", '{"a": "\\nx\\n", "b": true}')],
        ),
        ("llama3", '<|python_tag|>{"type": "function", "name": "f", "parameters": {}}', [Call("f", "{}")]),
        ("mistral", "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[CALL_ID]abc[ARGS]{}", [Call("f", "{}"), Call("g", "{}")]),
        ("mistral", '[TOOL_CALLS]f{"a": 1}', [Call("f", '{"a": 1}')]),
        ("gemma", "<start_function_call>call:f{a:<escape>{y<escape>}<end_function_call>", [Call("f", '{"a": "{y"}')]),
    ],
)  # fmt: skip
def test_other_ways_to_write_a_call(family: FamilyName, text: str, calls: list[Call]) -> None:
    assert fields(whole(FAMILIES[family](), text)) == ("", "", calls)


def test_harmonys_channels() -> None:
    text = (
        "<|channel|>analysis<|message|>Which?<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>"
        + WEATHER.arguments
        + "<|call|>"
    )
    assert fields(whole(FAMILIES["harmony"](), text)) == ("I look.", "Which?", [WEATHER])
    final = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>"
    assert fields(whole(FAMILIES["harmony"](), final)) == ("Yes.", "Hm.", [])
    bad = "<|channel|>commentary to=functions.f<|message|>not json<|call|>"
    assert fields(whole(FAMILIES["harmony"](), bad)) == ("not json", "", [])
    again = FAMILIES["harmony"]()
    again.push("<|channel|>commentary to=functions.f<|message|>{}")
    assert len(again.finish().calls) == 1 and not again.finish().calls, "the end comes once"


TEXTS = st.lists(
    st.sampled_from(
        [
            *("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "<|tool_call>", "<tool_call|>", "{"),
            *("<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|start|>", "analysis", "final", " to=functions.f"),
            *('{"name": "f", "arguments": {"a": "b"}}', '{"name": "f"', "call:f{a:1}", '<|"|>', '"', "\\", "}", "["),
            *("<function=f>", "</function>", "<parameter=a>", "</parameter>"),
            *(";", "<think>", "</think>", "[THINK]", "[/THINK]", " ", "\n\n", "word", "f", "<", "é"),
        ]
    ),
    max_size=14,
).map("".join)  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
@given(TEXTS, st.lists(st.integers(0, 400), max_size=12))
@examples(150)
def test_any_cut_gives_the_same(family: FamilyName, text: str, cuts: list[int]) -> None:
    for template in ("", "<think></think>"):
        for tail in ("", "<think>\n"):
            parsing = Parsing(template, {}, {None: tail}, family)
            want = fields(whole(parsing.parser(tools=True), text))
            assert fields(pieces(parsing.parser(tools=True), text, cuts)) == want
            assert fields(pieces(parsing.parser(tools=True), text, list(range(len(text))))) == want


@pytest.mark.parametrize("pair", PAIRS)
def test_reasoning_comes_before_content_and_calls(pair: tuple[str, str]) -> None:
    begin, end = pair
    parsing = Parsing(f"{begin} {end}", {}, {None: "", True: f"…{begin}\n", False: f"{begin}{end}"}, "hermes")
    text = f"\n why\n{end}\n\nSo:\n{hermes(WEATHER)}"
    assert fields(whole(parsing.parser(tools=True), begin + text)) == ("So:", "why", [WEATHER])
    assert fields(whole(parsing.parser(tools=True, thinks=True), text)) == ("So:", "why", [WEATHER])
    assert fields(whole(parsing.parser(tools=True, thinks=True), begin + text)) == ("So:", "why", [WEATHER])
    assert fields(whole(parsing.parser(tools=True, thinks=False), "So:")) == ("So:", "", [])
    assert fields(whole(parsing.parser(tools=False), begin + "cut off")) == ("", "cut off", [])
    assert fields(whole(parsing.parser(tools=False), "No thought.")) == ("No thought.", "", [])
    assert whole(Parsing().parser(tools=False), f"{begin}a{end}").content == f"{begin}a{end}", (
        "a model that does not think"
    )


@pytest.mark.parametrize(
    ("template", "family"),
    [
        ("", "hermes"),
        ("{{ tools }} <tool_call> <|python_tag|>", "hermes"),
        ("{{ tools }} <tool_call> <function=", "qwen3_coder"),
        ("{{ tools }} <|python_tag|>", "llama3"),
        ("{{ tools }} [TOOL_CALLS]", "mistral"),
        ("{{ tools }} <|tool_call>call:", "gemma"),
        ("{{ tools }} <start_function_call>", "gemma"),
        ("{{ tools }} <|channel|>commentary", "harmony"),
        ("[TOOL_CALLS] without the list", "hermes"),
    ],
)
def test_the_template_names_the_family(template: str, family: FamilyName) -> None:
    assert family_of(template) == family
    assert Parsing(template, named="mistral").family == "mistral", "an operator knows better"


def test_only_markers_in_use_become_text() -> None:
    special = {1: "<|python_tag|>", 2: "<|eot_id|>", 3: "[THINK]", 4: "<|channel|>"}
    assert Parsing("tools <|python_tag|>", special).markers(tools=True) == {1: "<|python_tag|>"}
    assert Parsing("tools <|python_tag|>", special).markers(tools=False) == {}
    assert Parsing("[THINK] [/THINK]", special).markers(tools=False) == {3: "[THINK]"}
    assert Parsing("tools <|channel|>", special).markers(tools=False) == {4: "<|channel|>"}
