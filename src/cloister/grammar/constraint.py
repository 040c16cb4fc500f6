"""A form as JSON text becomes the source of a grammar, bounded before anything is compiled. A form is an object with
one of: json_schema; json_object, true; regex; choice, a list of texts; grammar, Lark as llguidance reads it."""

import json
import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, cast

from cloister.errors import FormRefused
from cloister.grammar.form import MOST_CHARACTERS

Kind = Literal["json_schema", "regex", "grammar"]  # what the library compiles
MOST_KEYS = 1024  # in all objects of a schema together
MOST_DEPTH = 64
MOST_REPEATED = 1000  # by all of a regex's counts that are nested, multiplied
MOST_CHOICES = 1024
_COUNTED = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
MOST_COUNTED = 100_000
_COUNT = re.compile(r"\{(\d*),?(\d*)\}")


class Constraint(NamedTuple):
    kind: Kind
    source: str


def read_form(form: str) -> Constraint:
    """FormRefused, without a word of it, where it is malformed or goes beyond a bound."""
    if len(form) > MOST_CHARACTERS:
        raise too_large(f"A form may have {MOST_CHARACTERS} characters.")
    try:
        given = json.loads(form)
    except (ValueError, RecursionError):
        raise malformed() from None
    if not isinstance(given, dict) or len(given) != 1:
        raise malformed()
    [(kind, value)] = given.items()
    if kind == "json_object" and value is True:
        return Constraint("json_schema", '{"type":"object"}')
    if kind == "json_schema" and isinstance(value, dict):
        _check_schema(value)
        return Constraint("json_schema", json.dumps(value, ensure_ascii=False))
    if kind == "choice" and isinstance(value, list) and value and all(isinstance(one, str) and one for one in value):
        if len(value) > MOST_CHOICES:
            raise too_large(f"There may be {MOST_CHOICES} choices.")
        return Constraint("grammar", "start: " + " | ".join(json.dumps(one, ensure_ascii=False) for one in value))
    if kind in ("regex", "grammar") and isinstance(value, str) and value:
        _check_counts(value)
        return Constraint(cast(Kind, kind), value)
    raise malformed()


def malformed(hint: str | None = None) -> FormRefused:
    return FormRefused("The answer's form is malformed, or has what is not supported.", param=PARAM, hint=hint)


def too_large(bound: str = "") -> FormRefused:
    message = f"The answer's form is too large or too complex. {bound}".strip()
    return FormRefused(message, param=PARAM, hint="Simplify it.")


PARAM = "response_format"


def _check_schema(schema: dict[str, Any]) -> None:
    keys = 0
    for value, depth in _nodes(schema):
        if depth > MOST_DEPTH:
            raise too_large(f"A schema may be {MOST_DEPTH} levels deep.")
        if not isinstance(value, dict):
            continue
        keys += len(value)
        if keys > MOST_KEYS:
            raise too_large(f"A schema may have {MOST_KEYS} keys.")
        for name in _COUNTED:
            count = value.get(name)
            if isinstance(count, int | float) and count > MOST_COUNTED:
                raise too_large(f"A count in a schema may be {MOST_COUNTED}.")
        patterns = value.get("patternProperties")
        for pattern in (value.get("pattern"), *(patterns if isinstance(patterns, dict) else ())):
            if isinstance(pattern, str):
                _check_counts(pattern)


def _nodes(schema: Any) -> Iterator[tuple[Any, int]]:
    left = [(schema, 1)]
    while left:
        value, depth = left.pop()
        yield value, depth
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        left += [(each, depth + 1) for each in inside if isinstance(each, dict | list)]


def _check_counts(pattern: str) -> None:
    """The product of all counts bounds what nested ones repeat; few patterns that people write come near."""
    product = 1
    for found in _COUNT.finditer(pattern):
        product *= max(1, *(int(count) for count in found.groups() if count and len(count) < 7), 1)
        if product > MOST_REPEATED or any(len(count) > 6 for count in found.groups()):
            raise too_large(f"A pattern's counts may be {MOST_REPEATED} in all, multiplied.")
