"""A form as JSON text becomes the source of a grammar, bounded before anything is compiled. A form is an object with
one of: json_schema; json_object, true; regex; choice, a list of texts; grammar, Lark as llguidance reads it."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from math import lcm, prod
from typing import Any, Literal, NamedTuple

from cloister.grammar.form import MOST_CHARACTERS
from cloister.grammar.narrowed import narrower
from cloister.grammar.pattern import MOST_PATTERN, check_pattern
from cloister.grammar.refusal import malformed, too_large

Kind = Literal["json_schema", "regex", "grammar"]  # what the library compiles
MOST_KEYS = 1024  # in all objects of a schema together
MOST_DEPTH = 64
MOST_CHOICES = 1024
MOST_COUNTED = 100_000  # minItems, maxLength …
MOST_MULTIPLE = 2_000  # least common multiple of all multipleOf, and a fifth of their sum
MOST_INTERSECTED = 8  # patterns of a schema, where one value may have to match several
MOST_RULES = 300  # lines of a grammar
MOST_GRAMMAR = 8192  # characters of a grammar, without the JSON in it
_LONGEST = {"time": 24, "date-time": 36, "email": 64}  # formats that a small model might never end
# JSON Schema's. Any other is an annotation (§7.2.3 of its validation), which the library refuses.
_FORMATS = frozenset(
    (
        *("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "json-pointer", "regex"),
        *("relative-json-pointer", "time", "uri", "uri-template", "uuid"),
    )
)
# Of those that the library refuses, these hold all texts of one that it follows.
_WIDER = {
    "uri-reference": "uri",
    "iri": "uri",
    "iri-reference": "uri",
    "idn-email": "email",
    "idn-hostname": "hostname",
}
_HARDEST = 8
_VALUES = frozenset(("const", "default", "enum", "examples"))
_COUNTED = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_SLASH = re.compile(r"\\.|/", re.DOTALL)
_REPEATED = re.compile(r"\{\s*(\d*)\s*,?\s*(\d*)\s*\}|~\s*(\d+)(?:\s*\.\.\s*(\d+))?")
MOST_REPEATED = 10_000  # all counts of a grammar, multiplied
# As Python's json writes it. White space at will would let a small model write it without end.
SPACED = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Constraint(NamedTuple):
    kind: Kind
    source: str


def read_form(form: str) -> Constraint:
    """FormRefused, without a word of it, where it is malformed or goes beyond a bound."""
    if len(form) > MOST_CHARACTERS:
        raise too_large(f"A form may have {MOST_CHARACTERS} characters.")
    try:
        given = json.loads(form, parse_constant=_refuse_constant)
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
    if kind == "regex" and isinstance(value, str) and value:
        check_pattern(value)
        return Constraint(kind, value)
    if kind == "grammar" and isinstance(value, str) and value:
        return Constraint(kind, _checked_grammar(value))
    raise malformed()


def _refuse_constant(name: str) -> None:
    raise ValueError(name)  # NaN and Infinity, which are not JSON


def json_part(schema: Mapping[str, Any]) -> str:
    """JSON of this schema, as a part of a grammar."""
    return f"%json {json.dumps({'x-guidance': SPACED, **schema}, ensure_ascii=False)}"


def answer_part(form: str) -> str:
    """What this form allows, as a part of a grammar; empty if it is a grammar itself."""
    constraint = read_form(form)
    if constraint.kind == "json_schema":
        return json_part(json.loads(constraint.source))
    if constraint.kind == "regex":
        pattern = _SLASH.sub(lambda found: "\\/" if found[0] == "/" else found[0], constraint.source)
        return f"/{pattern}/".replace("\n", "\\n")
    return constraint.source.removeprefix("start: ") if "choice" in json.loads(form) else ""


def _check_schema(schema: dict[str, Any], most_intersected: int = MOST_INTERSECTED) -> None:
    """Bounds some texts, too, and leaves out formats that JSON Schema does not know."""
    keys, patterns, multiples, intersects = 0, list[str](), list[int](), False
    for value, depth, is_schema in _nodes(schema):
        if depth > MOST_DEPTH:
            raise too_large(f"A schema may be {MOST_DEPTH} levels deep.")
        if not isinstance(value, dict):
            continue
        keys += len(value)
        if keys > MOST_KEYS:
            raise too_large(f"A schema may have {MOST_KEYS} keys.")
        if any(isinstance(count := value.get(name), int | float) and count > MOST_COUNTED for name in _COUNTED):
            raise too_large(f"A count in a schema may be {MOST_COUNTED}.")
        if value.get("x-guidance", SPACED) != SPACED:  # the library's own options
            raise malformed()
        if is_schema and isinstance(format := value.get("format"), str):
            if format in _WIDER:
                value["format"] = format = _WIDER[format]
            elif format not in _FORMATS:
                del value["format"]
            if value.get("type") == "string" and format in _LONGEST:
                value.setdefault("maxLength", _LONGEST[format])
        named = value.get("patternProperties")
        patterns += named if isinstance(named, dict) else ()
        patterns += [one for one in (value.get("pattern"),) if isinstance(one, str)]  # a property may have this name
        if type(multiple := value.get("multipleOf")) in (int, float):
            multiples.append(_significand(multiple))
        intersects = intersects or "allOf" in value or len({"$ref", "pattern"} & value.keys()) == 2
    if intersects and len(patterns) > most_intersected:
        raise too_large(f"Beside allOf there may be {most_intersected} patterns.")
    for pattern in patterns:
        check_pattern(pattern)
    if sum(map(len, set(patterns))) > MOST_PATTERN:
        raise too_large(f"All patterns together may have {MOST_PATTERN} characters.")
    if lcm(*multiples) > MOST_MULTIPLE or sum(multiples) > 5 * MOST_MULTIPLE:
        raise too_large(f"A multipleOf may be {MOST_MULTIPLE}.")


def _significand(number: Any) -> int:
    """Its digits as a whole number: a regex that counts multiples has as many states."""
    digits = Decimal(str(number)).normalize().as_tuple().digits
    return int("".join(map(str, digits))) or 1


def hardest_texts(schema: Any) -> list[dict[str, Any]]:
    """A few whose pattern counts and whose length is bounded: both together may be more than either."""
    found = dict[tuple[int, str], dict[str, Any]]()
    for value, _, is_schema in _nodes(schema):
        pattern, most = (value.get("pattern"), value.get("maxLength")) if isinstance(value, dict) else ("", None)
        if is_schema and isinstance(pattern, str) and "{" in pattern and type(most) is int:
            found[most, pattern] = {"type": "string", "pattern": pattern, "maxLength": most}
    return [found[which] for which in sorted(found)[-_HARDEST:]]


def _nodes(schema: Any) -> Iterator[tuple[Any, int, bool]]:
    """With the depth, and whether this may be a schema: a constant is none."""
    left = [(schema, 1, True)]
    while left:
        value, depth, is_schema = left.pop()
        yield value, depth, is_schema
        inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        left += [
            (each, depth + 1, is_schema and key not in _VALUES) for key, each in inside if isinstance(each, dict | list)
        ]


def _checked_grammar(grammar: str) -> str:
    """Its parts of JSON are checked as schemas; they count together."""
    if grammar.lstrip().startswith("{"):  # the library would read another language
        raise malformed()
    between, schemas = _parts(grammar)
    rest = "".join(between)
    _check_schema({"": schemas})
    if len(rest) > MOST_GRAMMAR or rest.count("\n") > MOST_RULES:
        raise too_large(f"A grammar may have {MOST_RULES} lines and {MOST_GRAMMAR} characters, beside its JSON.")
    counts = [int(count) for found in _REPEATED.finditer(rest) for count in found.groups() if count]
    if prod(max(1, count) for count in counts) > MOST_REPEATED:
        raise too_large(f"All counts of a grammar, multiplied, may be {MOST_REPEATED}.")
    return _written(between, schemas)


def _parts(grammar: str) -> tuple[list[str], list[Any]]:
    """Its text before, between and after its parts of JSON, and these."""
    first, *parts = grammar.split("%json")
    between, schemas = [first], list[Any]()
    for part in parts:
        try:
            schema, end = json.JSONDecoder().raw_decode(part.lstrip())
        except (ValueError, RecursionError):
            raise malformed() from None
        schemas.append(schema)
        between.append(part.lstrip()[end:])
    return between, schemas


def _written(between: list[str], schemas: list[Any]) -> str:
    written = (
        f"%json {json.dumps(schema, ensure_ascii=False)}{text}"
        for schema, text in zip(schemas, between[1:], strict=True)
    )
    return "".join([between[0], *written])


def narrowed(constraint: Constraint, is_empty: Callable[[dict[str, Any]], bool]) -> Constraint:
    """With schemas that the library follows, of which each answer is one of the schemas here."""
    if constraint.kind == "json_schema":
        schema = narrower(json.loads(constraint.source), is_empty)
        _check_schema(schema, 4 * MOST_INTERSECTED)  # those that exclude words are simple
        return Constraint("json_schema", json.dumps(schema, ensure_ascii=False))
    if constraint.kind == "regex":
        return constraint
    between, schemas = _parts(constraint.source)
    schemas = [narrower(schema, is_empty) for schema in schemas]
    return Constraint("grammar", _checked_grammar(_written(between, schemas)))
