"""From a request's fields to the form, and what is refused: without a word of the user's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cloister.errors import FormRefused
from cloister.grammar.form import FIELDS, MOST_CHARACTERS, form_of

SCHEMA = {"type": "object", "properties": {"größe": {"type": "number"}}}


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}, "guided_json": None}, None),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": SCHEMA, "strict": True},
                }
            },
            {"json_schema": SCHEMA},
        ),
        ({"guided_json": SCHEMA}, {"json_schema": SCHEMA}),
        ({"guided_json": json.dumps(SCHEMA)}, {"json_schema": SCHEMA}),
        ({"guided_regex": "a+"}, {"regex": "a+"}),
        ({"guided_choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"guided_grammar": 'start: "a"'}, {"grammar": 'start: "a"'}),
        ({"structured_outputs": {"json": SCHEMA, "regex": None}}, {"json_schema": SCHEMA}),
        ({"structured_outputs": {"json_object": True}}, {"json_object": True}),
        ({"structured_outputs": {"choice": ["a"]}}, {"choice": ["a"]}),
    ],
)
def test_a_form_has_one_writing(fields: dict[str, Any], form: dict[str, Any] | None) -> None:
    written = form_of(fields)
    assert (json.loads(written) if written else None) == form


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": "SECRET"},
        {"response_format": {"type": "SECRET"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "SECRET"}}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": "SECRET"}}},
        {"guided_json": "SECRET"},
        {"guided_json": "[" * 100_000},
        {"guided_json": ["SECRET"]},
        {"guided_regex": ""},
        {"guided_regex": ["SECRET"]},
        {"guided_choice": []},
        {"guided_choice": ["SECRET", 1]},
        {"guided_choice": "SECRET"},
        {"guided_grammar": 5},
        {"guided_regex": "\ud800"},
        {"structured_outputs": {}},
        {"structured_outputs": {"json": SCHEMA, "regex": "SECRET"}},
        {"structured_outputs": {"json_object": "SECRET"}},
        {"structured_outputs": {"structural_tag": "SECRET"}},
        {"structured_outputs": "SECRET"},
    ],
)
def test_what_is_no_form_is_refused_by_its_field(fields: dict[str, Any]) -> None:
    with pytest.raises(FormRefused) as refused:
        form_of(fields)
    assert refused.value.param in fields and "SECRET" not in str(refused.value)


def test_two_forms_are_refused() -> None:
    with pytest.raises(FormRefused, match="response_format and guided_regex") as refused:
        form_of({"response_format": {"type": "json_object"}, "guided_regex": "a"})
    assert refused.value.param in FIELDS


def test_a_long_form_is_refused() -> None:
    with pytest.raises(FormRefused, match=str(MOST_CHARACTERS)):
        form_of({"guided_regex": "a" * MOST_CHARACTERS})
