"""A sample of JSON schemas of the kinds that people send (easy and medium in JSONSchemaBench's words), made here."""

from __future__ import annotations

from typing import Any

import jsonschema

FORMATS = jsonschema.FormatChecker(("date", "email", "uuid", "ipv4"))
Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
SHORT: Schema = {"type": "string", "maxLength": 24}
COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": 1000}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}
DAY: Schema = {"type": "string", "format": "date"}
NULL: Schema = {"type": "null"}


def record(*optional: str, **properties: Schema) -> Schema:
    """An object with these properties, of which those named in `optional` may be left out."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def several(item: Schema, least: int = 0, most: int = 3, **more: Any) -> Schema:
    return {"type": "array", "items": item, "minItems": least, "maxItems": most, **more}


def one_of(*values: Any) -> Schema:
    return {"enum": list(values)}


def with_defs(schema: Schema, **defs: Schema) -> Schema:
    return {**schema, "$defs": defs}


def ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


ADDRESS = record("line", street=SHORT, line=SHORT, town=SHORT, code={"type": "string", "pattern": "^[0-9]{5}$"})
PERSON = record(name=SHORT, age={"type": "integer", "minimum": 0, "maximum": 120})
PRICE: Schema = {"type": "number", "minimum": 0, "maximum": 1000}
LINE = record(
    product=SHORT, count={"type": "integer", "minimum": 1, "maximum": 9}, price={"type": "number", "minimum": 0}
)
TREE = with_defs(ref("node"), node=record("left", value=COUNT, left={"anyOf": [NULL, record(value=COUNT)]}))

SCHEMAS: dict[str, Schema] = {
    # values alone
    "text": {"type": "string", "maxLength": 60},
    "number": NUMBER,
    "whole number": {"type": "integer"},
    "flag": FLAG,
    "nothing": NULL,
    "constant": {"const": {"ok": True, "n": 1}},
    "choice": one_of("red", "green", "blue"),
    "mixed choice": one_of("a", 1, None, True, 2.5, {"x": []}),
    "text or number": {"type": ["string", "integer"], "maxLength": 20},
    # objects
    "a person": PERSON,
    "optional parts": record("nick", "age", name=SHORT, nick=SHORT, age=COUNT),
    "all optional": record("a", "b", "c", a=FLAG, b=COUNT, c=SHORT),
    "nested": record(person=PERSON, address=ADDRESS),
    "deep": record(a=record(b=record(c=record(d=record(e=FLAG))))),
    "empty": record(),
    "many properties": record(**{f"field_{number}": COUNT for number in range(20)}),
    "names with signs": record(**{"first name": SHORT, "e-mail": SHORT, "größe": NUMBER, 'a"b': FLAG, "a\\b": FLAG}),
    "map of numbers": {"type": "object", "additionalProperties": NUMBER, "maxProperties": 3},
    "named by pattern": {"type": "object", "patternProperties": {"^k[0-9]$": COUNT}, "additionalProperties": False},
    "described": {
        "title": "City",
        "description": "A city",
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **record(name={"type": "string", "description": "its name", "examples": ["Rome"], "maxLength": 30}),
    },
    "with a default": record(unit={"type": "string", "default": "m", "maxLength": 5}, value=NUMBER),
    # arrays
    "words": several(SHORT),
    "one to five numbers": several(NUMBER, 1, 5),
    "exactly three": several(COUNT, 3, 3),
    "a pair": {"type": "array", "prefixItems": [SHORT, COUNT], "items": False, "minItems": 2},
    "records": several(PERSON, 1, 2),
    "a matrix": several(several(COUNT, 2, 2), 2, 2),
    "of choices": several(one_of("N", "E", "S", "W"), 2, 4),
    "of either": several({"anyOf": [COUNT, SHORT]}, 1, 3),
    "an order": record(customer=PERSON, lines=several(LINE, 1, 2), paid=FLAG),
    # ranges
    "percent": record(value={"type": "number", "minimum": 0, "maximum": 100}),
    "below zero": record(value={"type": "integer", "minimum": -40, "maximum": -1}),
    "exclusive": record(value={"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 10}),
    "a year": record(year={"type": "integer", "minimum": 1900, "maximum": 2100}),
    "steps of five": record(value={"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100}),
    "lengths": record(code={"type": "string", "minLength": 3, "maxLength": 6}),
    # patterns and formats
    "plate": record(plate={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}),
    "hex colour": {"type": "string", "pattern": "^#[0-9a-f]{6}$"},
    "version": {"type": "string", "pattern": r"^v?\d+\.\d+\.\d+$", "maxLength": 16},
    "either word": {"type": "string", "pattern": "^(yes|no|maybe)$"},
    "a day": record(day=DAY),
    "a moment": record(at={"type": "string", "format": "date-time"}),
    "an hour": record(at={"type": "string", "format": "time"}),
    "mail": record(mail={"type": "string", "format": "email"}),
    "an id": record(id={"type": "string", "format": "uuid"}),
    "an address of a machine": record(ip={"type": "string", "format": "ipv4"}),
    # alternatives
    "text or nothing": record(note={"anyOf": [SHORT, NULL]}),
    "nullable": record(count={"type": ["integer", "null"]}),
    "two kinds": {"anyOf": [record(kind={"const": "cat"}, lives=COUNT), record(kind={"const": "dog"}, tricks=COUNT)]},
    "one of two": {"oneOf": [record(kind={"const": "a"}, n=COUNT), record(kind={"const": "b"}, t=SHORT)]},
    "both": {"allOf": [{"type": "object", "properties": {"a": FLAG}, "required": ["a"]}, {"properties": {"b": FLAG}}]},
    "a shape": record(
        shape={
            "anyOf": [
                record(type={"const": "circle"}, radius=NUMBER),
                record(type={"const": "box"}, width=NUMBER, height=NUMBER),
            ]
        }
    ),
    # references
    "by name": with_defs(record(home=ref("address"), work=ref("address")), address=ADDRESS),
    "definitions": {"definitions": {"n": COUNT}, **record(a={"$ref": "#/definitions/n"})},
    "a list of names": with_defs(several(ref("person"), 1, 2), person=PERSON),
    "a chain": with_defs(ref("a"), a=record(b=ref("b")), b=record(c=ref("c")), c=FLAG),
    "into a property": record(first=COUNT, second={"$ref": "#/properties/first"}),
    "a small tree": TREE,
    "linked": with_defs(ref("l"), l=record("next", value=COUNT, next={"anyOf": [NULL, record(value=FLAG)]})),
    # what programs ask for
    "a tool's call": record(name=one_of("search", "open"), arguments=record(query=SHORT, limit=COUNT)),
    "a verdict": record(verdict=one_of("pass", "fail"), reasons=several(SHORT, 1, 3), score={**NUMBER, "minimum": 0}),
    "entities": record(entities=several(record(text=SHORT, label=one_of("PER", "LOC", "ORG")), 0, 3)),
    "a recipe": record(title=SHORT, minutes=COUNT, steps=several(SHORT, 1, 3), vegan=FLAG),
    "a translation": record(language=one_of("de", "fr", "es"), text={"type": "string", "maxLength": 60}),
    "an event": record("place", title=SHORT, day=DAY, place=SHORT, guests=several(SHORT)),
    "a card": record(front=SHORT, back=SHORT, tags=several(SHORT, 0, 2), level=one_of(1, 2, 3)),
    "a summary": record(summary={"type": "string", "maxLength": 120}, keywords=several(SHORT, 2, 3)),
    "settings": record("proxy", host=SHORT, port=COUNT, proxy=SHORT, tls=FLAG),
    "a reading": record(sensor=SHORT, value=NUMBER, unit=one_of("C", "F", "K"), at=DAY),
}
