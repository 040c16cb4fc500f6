"""What the library does not follow is said more narrowly: never a value that is not of the schema."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloister.errors import FormRefused
from cloister.grammar.compiled import check
from cloister.grammar.constraint import json_part
from cloister.grammar.mask import Mask
from cloister.prompts.tokenizer import Tokenizer
from tests.grammar.schemas import COUNT, FLAG, SHORT, TEXT, record, ref
from tests.grammar.test_mask import walk

A, B, PAIR = {"a": 1}, {"b": True}, {"a": 1, "b": True}
AB = {"type": "object", "properties": {"a": COUNT, "b": FLAG}}
CLOSED = {**AB, "additionalProperties": False}

# Of each schema, values that may be said and values that may not.
NARROWED: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "one of two that overlap": ({**AB, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, [A, B], [PAIR, {}]),
    "optional and closed": ({"oneOf": [record("a", a=COUNT), record("b", b=FLAG)]}, [A, B], [{}]),
    "an optional kind": (
        {"oneOf": [record("k", k={"enum": ["x", "xy"]}), record("k", "n", k={"enum": ["z"]}, n=COUNT)]},
        [{"k": "x"}, {"k": "z", "n": 1}, {"n": 1}],
        [{}],
    ),
    "flags": (
        {**CLOSED, "oneOf": [{"properties": {"b": {"const": True}}}, {"properties": {"b": {"enum": [False]}}}]},
        [PAIR, {"a": 1, "b": False}],
        [A, {}],
    ),
    "lengths": ({**TEXT, "oneOf": [{"maxLength": 2}, {"minLength": 2, "maxLength": 4}]}, ["a", "abc"], ["ab", "abcde"]),
    "numbers": ({"type": "integer", "oneOf": [{"minimum": 5}, {"maximum": 7}]}, [4, 8], [5, 7]),
    "patterns that exclude each other": (
        {**TEXT, "oneOf": [{"pattern": "^[^:]{1,9}$"}, {"pattern": "^[^:]{1,9}:[0-9]$"}]},
        ["ab", "ab:1"],
        ["a:b"],
    ),
    "a name, or more": (
        {"$defs": {"m": record("a", a=COUNT, b=FLAG)}, "oneOf": [SHORT, ref("m"), {"type": "null"}]},
        ["x", PAIR, B, None],
        [A],
    ),
    "not a word": ({**SHORT, "not": {"enum": ["test", "to", "é]"]}}, ["t", "tests", "te", "tx"], ["test", "to", "é]"]),
    "not both": ({**CLOSED, "not": {"required": ["a", "b"]}}, [A, B, {}], [PAIR]),
    "not a type": ({"type": ["string", "null"], "maxLength": 5, "not": TEXT}, [None], ["a"]),
    "needed together": ({**CLOSED, "dependencies": {"a": ["b"]}}, [PAIR, B, {}], [A]),
    "needed, by its newer name": ({**CLOSED, "dependentRequired": {"a": ["b"]}}, [PAIR, B, {}], [A]),
    "a schema that is needed": (
        {**CLOSED, "dependentSchemas": {"b": {"properties": {"a": {"maximum": 5}}, "required": ["a"]}}},
        [PAIR, {"a": 9}, {}],
        [B, {"a": 9, "b": True}],
    ),
    "if": (
        {
            **CLOSED,
            "required": ["b"],
            "if": {"properties": {"b": {"const": True}}},
            "then": {"required": ["a"]},
            "else": {"properties": {"a": False}},
        },
        [PAIR, {"b": False}],
        [B, {"a": 1, "b": False}],
    ),
    "one at least": ({**CLOSED, "minProperties": 1}, [A, B, PAIR], [{}]),
    "two at least": ({**CLOSED, "minProperties": 2}, [PAIR], [A, B, {}]),
    "one at most": ({**AB, "maxProperties": 1}, [A, B, {}], [PAIR]),
    "one exactly": ({**CLOSED, "minProperties": 1, "maxProperties": 1}, [A, B], [PAIR, {}]),
    "inside a list": (
        {"type": "array", "maxItems": 2, "items": {**CLOSED, "minProperties": 1}},
        [[A, B], []],
        [[{}]],
    ),
}  # fmt: skip


def may_say(form: str, words: Tokenizer, value: Any) -> bool:
    mask = Mask(form, words.stop_tokens)
    for token in words.encode(json.dumps(value, ensure_ascii=False)):
        mask.note(token)
    return not mask.failed and (mask.complete or mask._matcher.is_accepting())


@pytest.mark.parametrize("name", NARROWED)
def test_what_is_not_of_the_schema_is_never_said(name: str, words: Tokenizer) -> None:
    schema, said, never = NARROWED[name]
    form = json.dumps({"json_schema": schema})
    check(form)
    validator = jsonschema.Draft202012Validator(schema)
    if "dependencies" in schema:  # of older drafts
        validator = jsonschema.Draft7Validator(schema)
    assert all(map(validator.is_valid, said)) and not any(map(validator.is_valid, never)), "the table is right"
    assert [value for value in said if not may_say(form, words, value)] == []
    assert [value for value in never if may_say(form, words, value)] == []
    for seed in range(2):
        validator.validate(json.loads(walk(form, words, seed)))


@pytest.mark.parametrize(
    "schema",
    [
        {**CLOSED, "required": ["a", "b"], "properties": {**AB["properties"], "c": FLAG}, "maxProperties": 1},
        {**CLOSED, "minProperties": 3},
        {**AB, "allOf": 1, "minProperties": 1},
        {**AB, "minProperties": True},
        {**AB, "oneOf": {}},
        {"oneOf": [{}, {}]},
        {**FLAG, "not": {}},
    ],
)
def test_what_holds_nothing_or_is_no_schema_is_refused(schema: dict[str, Any], words: Tokenizer) -> None:
    with pytest.raises(FormRefused):
        check(json.dumps({"json_schema": schema}))


def test_a_format_that_has_a_narrower_one_is_that(words: Tokenizer) -> None:
    form = json.dumps({"json_schema": {**TEXT, "format": "uri-reference"}})
    check(form)
    assert may_say(form, words, "http://a.example/b") and not may_say(form, words, "a b")


def test_a_part_of_a_grammar_is_narrowed_too(words: Tokenizer) -> None:
    """As a tool's parameters are."""
    schema, said, never = NARROWED["one of two that overlap"]
    form = json.dumps({"grammar": f'start: "call" {json_part(schema)} "!"'})
    check(form)
    for value, may in ((said[0], True), (said[1], True), (never[0], False)):
        mask = Mask(form, words.stop_tokens)
        for token in words.encode(f"call{json.dumps(value)}!"):
            mask.note(token)
        assert (mask.complete, mask.failed) == (may, not may)


NAMES = st.sampled_from(["a", "b", "c"])
LEAVES = st.sampled_from(
    [
        *(
            FLAG,
            {"type": "null"},
            {"const": "x"},
            {"enum": ["x", "xy", 3]},
            {"enum": [1, 2]},
            {"minimum": 2},
            True,
            False,
        ),
        *(
            {**TEXT, "maxLength": 3},
            {**TEXT, "pattern": "^[ab]{1,3}$"},
            {"type": "integer", "minimum": 0, "maximum": 9},
        ),
    ]
)


def wider(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """An object with any of the keywords that are said more narrowly."""
    several = st.lists(parts, min_size=1, max_size=3)
    keywords = {
        **{"required": st.lists(NAMES, max_size=2, unique=True), "oneOf": several, "anyOf": several, "not": parts},
        **{
            "if": parts,
            "then": parts,
            "else": parts,
            "minProperties": st.integers(0, 2),
            "maxProperties": st.integers(0, 2),
        },
        **{"dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=2, unique=True), max_size=2)},
        **{"dependentSchemas": st.dictionaries(NAMES, parts, max_size=1)},
    }
    named = {"type": st.just("object"), "properties": st.dictionaries(NAMES, parts, max_size=3)}
    named |= {"additionalProperties": st.sampled_from([False, False, FLAG, True])}
    return st.fixed_dictionaries(named, optional=keywords) | st.fixed_dictionaries({"oneOf": several})


@given(schema=st.recursive(LEAVES, wider, max_leaves=6).filter(lambda each: isinstance(each, dict)))
@settings(derandomize=True, database=None, suppress_health_check=list(HealthCheck))
def test_any_schema_is_refused_or_followed(words: Tokenizer, schema: dict[str, Any]) -> None:
    form = json.dumps({"json_schema": schema})
    try:
        check(form)
    except FormRefused:
        return
    try:
        answer = walk(form, words, 0)
    except AssertionError:  # it has texts without an end
        return
    assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(answer)), answer


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda parts: st.lists(parts, max_size=3) | st.dictionaries(
            st.sampled_from(["oneOf", "not", "if", "then", "required", "properties", "enum", "type", "$ref", "allOf",
                             "dependencies", "minProperties", "maxProperties", "minLength", "additionalProperties"]),
            parts, max_size=4,
        ),
        max_leaves=30,
    ).filter(lambda each: isinstance(each, dict))
)  # fmt: skip
@settings(derandomize=True, database=None, suppress_health_check=list(HealthCheck))
def test_no_nonsense_breaks_it(words: Tokenizer, schema: dict[str, Any]) -> None:
    try:
        check(json.dumps({"json_schema": schema}))
    except FormRefused as refused:
        assert refused.param == "response_format"
