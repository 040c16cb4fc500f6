"""Bombs are refused in bounded time, with no word of theirs; what people write is not."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import Any

import pytest

from cloister.errors import FormRefused
from cloister.grammar.compiled import check
from cloister.grammar.constraint import MOST_KEYS, json_part, read_form
from cloister.grammar.mask import Mask
from cloister.prompts.tokenizer import Tokenizer
from tests.grammar.schemas import SCHEMAS

LONGEST_S = 3.0  # of processor time, which other work on the machine stretches little; all take less than 0.3
SECRET = "xqzwv"  # in every bomb, in no error


def schema(value: Any) -> str:
    return json.dumps({"json_schema": value})


def regex(pattern: str) -> str:
    return json.dumps({"regex": pattern})


def lark(grammar: str) -> str:
    return json.dumps({"grammar": grammar})


def nested(levels: int) -> dict[str, Any]:
    inner: dict[str, Any] = {"const": SECRET}
    for _ in range(levels):
        inner = {"items": inner}
    return inner


def refs(count: int, **more: Any) -> dict[str, Any]:
    """A chain, each of which names the next twice."""
    links = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2, **more} for n in range(count)}
    return {"$defs": {**links, f"d{count}": {"const": SECRET}}, "$ref": "#/$defs/d0"}


def letters(count: int, written: str) -> Iterator[str]:
    return (written % chr(97 + n) + SECRET for n in range(count))


REFUSED = {
    "a deep schema": schema(nested(80)),
    "a very deep schema": '{"json_schema":' + '{"items":' * 5000 + "{}" + "}" * 5001,
    "ten thousand keys": schema({"properties": {f"k{n}": {} for n in range(10_000)}})[:60_000] + "{}}}}",
    "too many keys": schema({"properties": {f"{SECRET}{n}": {} for n in range(MOST_KEYS)}}),
    "more choices than a row holds": schema(
        {"type": "object", "properties": {f"{SECRET}{n}": {} for n in range(1000)}}
    ),
    "a long text to repeat": schema({"enum": [SECRET * 12_000, "y"]}),
    "a cycle of references": schema({"$defs": {SECRET: {"$ref": f"#/$defs/{SECRET}"}}, "$ref": f"#/$defs/{SECRET}"}),
    "another document": schema({"$ref": f"http://{SECRET}.example/a"}),
    "a file": schema({"$ref": f"file:///{SECRET}"}),
    "many cases": schema({"allOf": [{"anyOf": [{"const": f"{SECRET}{n}{m}"} for m in range(9)]} for n in range(40)]}),
    "many objects at once": schema(
        {"allOf": [{"anyOf": [{"properties": {f"a{n}{m}": {}}} for m in range(4)]} for n in range(12)], "title": SECRET}
    ),
    "patterns at once": schema({"allOf": [{"type": "string", "pattern": each} for each in letters(20, ".*%s.*")]}),
    "patterns that exclude each other": schema(
        {"allOf": [{"type": "string", "pattern": f"^.*{letter}.{{15}}$", "title": SECRET} for letter in "ab"]}
    ),
    "a large multiple": schema({"type": "integer", "multipleOf": 999983, "title": SECRET}),
    "a large common multiple": schema({"allOf": [{"type": "integer", "multipleOf": n} for n in (997, 991)]}),
    "many multiples": schema({"properties": {f"k{n}": {"type": "integer", "multipleOf": 1801} for n in range(99)}}),
    "a large count": schema({"type": "array", "minItems": 10**9, "title": SECRET}),
    "endless numbers": '{"json_schema":{"minimum":NaN}}',
    "the library's options": schema({"x-guidance": {"whitespace_pattern": "( {0,1000}){0,1000}"}, "type": "object"}),
    "what it cannot do": schema({"type": "string", "not": {"pattern": SECRET}}),
    "parts that may exclude each other": schema(
        {"oneOf": [{"properties": {f"{SECRET}{n}{m}": {"type": "string"} for m in range(10)}} for n in range(40)]}
    ),
    "one of itself": schema(
        {
            "$defs": {
                "a": {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]},
                "b": {"oneOf": [{"$ref": "#/$defs/a"}, {"required": [SECRET]}]},
            },
            "$ref": "#/$defs/a",
        }
    ),
    "a tree of choices": schema(reduce(lambda inner, n: {"oneOf": [inner, {"required": [f"k{n}"]}]}, range(25), {})),
    "many conditions": schema(
        {"allOf": [{"if": {"required": [f"k{n}"]}, "then": {"required": [f"{SECRET}{n}"]}} for n in range(40)]}
    ),
    "one of many patterns": schema({"oneOf": [{"type": "string", "pattern": each} for each in letters(25, "%s.{15}")]}),
    "a long word to avoid": schema({"type": "string", "not": {"enum": [SECRET * 900]}}),
    "repetition": regex(SECRET + "a{1000000000}"),
    "nested repetition": regex(f"((({SECRET}{{1,100}}){{1,100}}){{1,100}}){{1,100}}"),
    "a repeated class": regex("[^" + SECRET + "]{1,100000}"),
    "a pattern in a schema": schema({"type": "string", "pattern": SECRET + "{50000}"}),
    "a name's pattern": schema({"patternProperties": {SECRET + "{50000}": {}}}),
    "large classes": regex(r"\p{L}*" * 600),
    "anything, often": regex("(?s:.*)" * 250 + SECRET),
    "comments": regex("(?x)a # ( \n {100000}" + SECRET),
    "a look ahead": regex(f"(?={SECRET})"),
    "open parentheses": regex("(" * 3000 + SECRET),
    "rules without end": lark(f'start: "{SECRET}" start'),
    "a chain of rules": lark("start: r0\n" + "\n".join(f'r{n}: r{n + 1} | "{SECRET}"' for n in range(1500))),
    "rules that double": lark("start: r0\n" + "\n".join(f"r{n}: r{n + 1} r{n + 1}" for n in range(40)) + '\nr40: "a"'),
    "terminals that double": lark(
        "start: T0\n" + "\n".join(f"T{n}: T{n + 1} T{n + 1}" for n in range(40)) + "\nT40: /a/"
    ),
    "repeated rules": lark("start: r0\n" + "\n".join(f"r{n}: r{n + 1}{{0,9}}" for n in range(90)) + '\nr90: "a"'),
    "a repeated terminal": lark('start: T\nT: "a" ~ 1000000'),
    "a multiple in a grammar": lark('start: %json {"type": "integer", "multipleOf": 999983}'),
    "keys in a grammar": lark("start: " + " ".join(json_part({"enum": [SECRET]}) for _ in range(500))),
    "another language": lark('{"grammars": [{"json_schema": {"multipleOf": 999983}}]}'),
    "a format that is no text": schema({"type": "string", "format": {SECRET: 1}}),
    "a pattern that counts, and a length": schema(
        {
            "properties": {"a": {"type": "string", "pattern": r"^$|(^(?:\S+\s+){0,99}\S+$)", "maxLength": 5000}},
            "title": SECRET,
        }
    ),
    "no rule": lark(SECRET),
    "too many choices": json.dumps({"choice": [f"{SECRET}{n}" for n in range(2000)]}),
    "too long": regex(SECRET * 20_000),
    "no JSON": SECRET,
    "two kinds": json.dumps({"regex": SECRET, "choice": [SECRET]}),
    "an unknown kind": json.dumps({SECRET: SECRET}),
    "no choice": json.dumps({"choice": []}),
    "no schema": json.dumps({"json_schema": SECRET}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bomb_is_refused_soon_and_without_a_word_of_it(name: str, words: Tokenizer) -> None:
    """In a thread, whose stack is smaller, as the gateway does."""
    begun = time.process_time()
    with ThreadPoolExecutor(1) as thread, pytest.raises(FormRefused) as refused:
        thread.submit(check, REFUSED[name]).result()
    assert time.process_time() - begun < LONGEST_S
    assert refused.value.param == "response_format" and SECRET not in str(refused.value)
    assert refused.value.__cause__ is None


FOLLOWED = {
    "large": schema({"properties": {f"k{n}": {"type": "string"} for n in range(400)}, "additionalProperties": False}),
    "an enum": schema({"enum": [hashlib.sha256(bytes([n % 256, n // 256])).hexdigest() for n in range(900)]}),
    "references that branch": schema(refs(40)),
    "a long chain": schema(refs(240)),
    "a laughing tree": schema(
        {
            "$defs": {"l0": {"type": "integer"}}
            | {f"l{n}": {"prefixItems": [{"$ref": f"#/$defs/l{n - 1}"}] * 2, "minItems": 2} for n in range(1, 40)},
            "$ref": "#/$defs/l39",
        }
    ),
    "a pattern that backtracks elsewhere": regex("(a+)+b"),
    "states": regex(".*a.{20}c"),
    "an ambiguous grammar": lark('start: e\ne: e e e | "a" |'),
    "many lists": schema({"type": "array", "minItems": 100_000, "items": {"type": "array", "minItems": 100_000}}),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_what_is_large_is_followed_in_bounded_steps(name: str, words: Tokenizer) -> None:
    import torch

    begun = time.process_time()
    check(FOLLOWED[name])
    mask, row = Mask(FOLLOWED[name], words.stop_tokens), torch.zeros(words.vocabulary)
    for _ in range(40):
        row.zero_()
        mask.apply(row)
        mask.note(int(row.argmax()))
    assert time.process_time() - begun < LONGEST_S


USUAL = {
    "an id": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "a mail": r"[a-z0-9._%+-]{1,64}@[a-z0-9.-]{1,200}\.[a-z]{2,10}",
    "a moment": r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,6})?Z",
    "a text": r".{0,1000}",
    "braces": r"\{\"a\": [0-9]{1,3}\}",
    "signs in a class": r"[(){}\]|^-]{1,20}",
}


@pytest.mark.parametrize("name", USUAL)
def test_usual_patterns_are_followed(name: str, words: Tokenizer) -> None:
    check(regex(USUAL[name]))
    check(schema({"type": "string", "pattern": f"^{USUAL[name]}$"}))


def test_the_whole_sample_is_followed(words: Tokenizer) -> None:
    for each in SCHEMAS.values():
        check(schema(each))


def test_a_property_may_have_a_keyword_s_name(words: Tokenizer) -> None:
    named = ("pattern", "multipleOf", "minItems", "allOf", "patternProperties", "$ref")
    check(schema({"type": "object", "properties": {name: {"type": "string"} for name in named[:-1]}}))


TEXT = {"type": "string"}
UNSUPPORTED: dict[str, dict[str, Any]] = {
    "not": {**TEXT, "not": {"pattern": SECRET}},
    "oneOf": {"oneOf": [TEXT, {**TEXT, "pattern": f"^{SECRET}"}]},
    "pattern": {**TEXT, "pattern": f"(?!{SECRET})"},
    "format": {**TEXT, "format": "json-pointer"},
    "propertyNames": {"type": "object", "propertyNames": {"pattern": SECRET}},
    "minProperties, maxProperties": {"type": "object", "properties": {SECRET: TEXT}, "minProperties": 2},
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_an_unsupported_keyword_is_named(name: str, words: Tokenizer) -> None:
    with pytest.raises(FormRefused, match=f"not supported: {name}") as refused:
        check(schema(UNSUPPORTED[name]))
    assert SECRET not in str(refused.value)


def test_a_format_that_json_schema_does_not_know_is_an_annotation(words: Tokenizer) -> None:
    check(schema({**TEXT, "format": "country-code"}))
    check(lark(f"start: {json_part({**TEXT, 'format': 'password'})}"))
    kept = {"enum": [{"type": "string", "format": "time"}, {"format": "mine"}], "const": {"format": "mine"}}
    assert json.loads(read_form(schema(kept)).source) == kept
    named = {"properties": {"format": {**TEXT, "format": "mine"}, "const": {**TEXT, "format": "time"}}}
    assert json.loads(read_form(schema(named)).source)["properties"]["format"] == TEXT
