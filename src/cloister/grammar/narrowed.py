"""Narrower schemas for what llguidance does not follow: every answer is of the schema, but some of its values cannot be
answers. `oneOf` becomes parts that exclude each other, `not` something else for sure, `if` and `dependencies` a choice.
Where there is no such schema, the keyword stays, and the library refuses it."""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from math import prod
from typing import Any

from cloister.grammar.refusal import too_large

Schema = dict[str, Any]
_KINDS = frozenset(("null", "boolean", "integer", "number", "string", "array", "object"))
_TYPES = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_PARTS = ("allOf", "anyOf", "prefixItems", "items", "additionalProperties", "additionalItems")
_REPLACED: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("dependencies", "dependentRequired", "dependentSchemas"), (dict,)),
    **dict.fromkeys(("not", "if", "then", "else"), (dict, bool)),
    **{"oneOf": (list,), "minProperties": (int,), "maxProperties": (int,)},
}
_BOUNDS = (  # keyword, the type it speaks of, what excludes it, and by how much it differs
    *(("minLength", "string", "maxLength", -1), ("maxLength", "string", "minLength", 1)),
    *(("minItems", "array", "maxItems", -1), ("maxItems", "array", "minItems", 1)),
    *(("minimum", "number", "exclusiveMaximum", 0), ("maximum", "number", "exclusiveMinimum", 0)),
    *(("exclusiveMinimum", "number", "maximum", 0), ("exclusiveMaximum", "number", "minimum", 0)),
)
_ROOM = 4_000  # schemas made or looked at
_DEEP = 6
_PRODUCT = 64  # of the choices of one part
_LETTERS = 1_000  # of texts that are excluded
_TRIED = 16  # compilations that ask whether anything is of two schemas


class _Narrowing:
    """`is_empty`: whether the library says that nothing is of this schema."""

    def __init__(self, root: Schema, is_empty: Callable[[Schema], bool]) -> None:
        self._root, self._is_empty = root, is_empty
        self._room, self._tries, self._deep = _ROOM, _TRIED, 0

    def narrow(self, schema: Any) -> Any:
        self._spend()
        if not isinstance(schema, dict):
            return schema
        around = {name: value for name, value in schema.items() if type(value) not in _REPLACED.get(name, ())}
        left = {name: self._inside(name, value) for name, value in around.items()}
        also = [*self._one_of(schema, around, left), *self._choices(schema), *self._counted(schema, left)]
        if also and isinstance(left.setdefault("allOf", []), list):
            left["allOf"] += also
        return left

    def _inside(self, name: str, value: Any) -> Any:
        if name in _MAPS and isinstance(value, dict):
            return {each: self.narrow(one) for each, one in value.items()}
        if name in _PARTS:
            return [self.narrow(one) for one in value] if isinstance(value, list) else self.narrow(value)
        return value

    def _one_of(self, schema: Schema, around: Schema, left: Schema) -> Iterator[Schema]:
        if branches := _list(schema, "oneOf"):
            parts = []
            for place, branch in enumerate(branches):
                others = branches[:place] + branches[place + 1 :]
                if (excluded := self._excluding(others, [around, branch])) is not None:
                    parts.append(_all_of([self.narrow(branch), *excluded]))
            if parts:
                yield {"anyOf": parts}
            else:
                left["oneOf"] = branches
        if "not" in schema:
            if (excluded := self._excluding([schema["not"]], [around])) is None:
                left["not"] = schema["not"]
            else:
                yield from excluded

    def _excluding(self, others: Sequence[Any], near: Sequence[Any]) -> list[Schema] | None:
        """What a value that is of `near` must be, to be of none of the others. None if that cannot be said."""
        conditions = list[list[Schema]]()
        for other in others:
            choices = self._negations(other, near)
            if not choices:  # two patterns: only the library knows
                choices = [kind for kind in ({}, {"type": "string"}) if self._holds_nothing([*near, other, kind])]
            if not choices:
                return None
            if {} not in choices:
                few = prod(map(len, conditions)) * len(choices) > _PRODUCT
                conditions.append(choices[:1] if few else choices)
        return [_any_of(choices) for choices in conditions]

    def _holds_nothing(self, schemas: Sequence[Any]) -> bool:
        self._tries -= 1
        named: Schema = {name: self._root[name] for name in ("$schema", "$defs", "definitions") if name in self._root}
        return self._tries >= 0 and self._is_empty({**named, "allOf": list(schemas)})

    def _choices(self, schema: Schema) -> Iterator[Schema]:
        for name in ("dependencies", "dependentRequired", "dependentSchemas"):
            for key, value in _map(schema, name).items():
                then = {"required": value} if isinstance(value, list) else self.narrow(value)
                yield {"anyOf": [{"properties": {key: False}}, then]}
        if "if" in schema and ("then" in schema or "else" in schema):
            holds = _all_of([self.narrow(schema["if"]), self.narrow(schema.get("then", True))])
            fails = [
                _all_of([each, self.narrow(schema.get("else", True))])
                for each in self._negations(schema["if"], [{name: schema[name] for name in schema if name != "if"}])
            ]
            yield _any_of([holds, *fails])

    def _counted(self, schema: Schema, left: Schema) -> Iterator[Schema]:
        required = set(_texts(schema, "required"))
        optional = [name for name in _map(schema, "properties") if name not in required]
        least, most = schema.get("minProperties"), schema.get("maxProperties")
        if not optional:  # the library counts these itself
            left.update({name: schema[name] for name in ("minProperties", "maxProperties") if name in schema})
            return
        if type(least) is int and (more := least - len(required)) > 0:
            if more > len(optional):
                left["minProperties"] = least
            elif more == 1:
                yield {"anyOf": [{"required": [name]} for name in optional]}
            else:
                yield {"required": optional[:more]}
        if type(most) is int and (room := most - len(required)) < 0:
            left["maxProperties"] = most
        elif type(most) is int:
            left["additionalProperties"] = False
            left.pop("patternProperties", None)
            kept = [optional[:room]] if room > 1 else [list(each) for each in combinations(optional, room)]
            yield _any_of([{"properties": {name: False for name in optional if name not in each}} for each in kept])

    def _negations(self, schema: Any, near: Sequence[Any]) -> list[Schema]:
        """Schemas, each of which excludes this one for a value that is of `near`. An empty one: `near` excludes it."""
        self._spend()
        if schema is False:
            return [{}]
        if not isinstance(schema, dict) or self._deep > _DEEP:
            return []
        self._deep += 1
        try:
            return self._negations_of(schema, near)
        finally:
            self._deep -= 1

    def _negations_of(self, schema: Schema, near: Sequence[Any]) -> list[Schema]:
        if "$ref" in schema:
            return self._negations(self._named(schema["$ref"]), near)
        around = [part for each in near for part in self._spread(each)]
        possible = frozenset.intersection(_KINDS, *map(_kinds, around))
        kinds = _kinds(schema)
        other = _KINDS - kinds - ({"number"} if "integer" in kinds else set())
        if possible <= other:
            return [{}]
        found = [*self._other_values(schema), *self._other_objects(schema, around)]
        found += [{"type": sorted(other & possible)}] if other & possible else []
        return [each for each in found if "type" not in each or _kinds(each) & possible]

    def _other_values(self, schema: Schema) -> Iterator[Schema]:
        values = _values(schema)
        words = [value for value in values if isinstance(value, str)]
        if words and sum(map(len, words)) <= _LETTERS:
            yield {"type": "string", "pattern": f"^{_other_text(words)}$"}
        if numbers := [value for value in values if type(value) in (int, float)]:
            yield {"type": "number", "exclusiveMinimum": max(numbers)}
            yield {"type": "number", "exclusiveMaximum": min(numbers)}
        if flags := [value for value in values if isinstance(value, bool)]:
            yield from ({"type": "boolean", "enum": [flag]} for flag in (True, False) if flag not in flags)
        for name, kind, excludes, step in _BOUNDS:
            bound: Any = schema.get(name)
            if type(bound) in (int, float) and (kind == "number" or bound + step >= 0):
                yield {"type": kind, excludes: bound + step}
        yield from (each for part in _list(schema, "allOf") for each in self._negations(part, []))
        for name in ("anyOf", "oneOf"):
            parts = [self._negations(part, []) for part in _list(schema, name)]
            if parts and all(parts):
                yield {"allOf": [_any_of(part) for part in parts]}
        if isinstance(schema.get("not"), dict):
            yield self.narrow(schema["not"])

    def _other_objects(self, schema: Schema, around: Sequence[Schema]) -> Iterator[Schema]:
        must = {name for each in around for name in _texts(each, "required")}
        own = _map(schema, "properties")
        yield from (
            {"type": "object", "properties": {name: False}} for name in _texts(schema, "required") if name not in must
        )
        if schema.get("additionalProperties") is False and "patternProperties" not in schema:
            known = dict.fromkeys(name for each in around for name in _map(each, "properties"))
            yield from ({"type": "object", "required": [name]} for name in known if name not in own)
        for name, value in own.items():
            near = [parts[name] for each in around if name in (parts := _map(each, "properties"))]
            for each in self._negations(value, near):
                yield {"type": "object", "properties": {name: each}, "required": [name]}

    def _spread(self, schema: Any, deep: int = 0) -> Iterator[Schema]:
        """Schemas of which each value of this one is."""
        self._spend()
        if not isinstance(schema, dict) or deep > _DEEP:
            return
        yield schema
        for part in _list(schema, "allOf"):
            yield from self._spread(part, deep + 1)
        if "$ref" in schema:
            yield from self._spread(self._named(schema["$ref"]), deep + 1)

    def _named(self, ref: Any) -> Any:
        if not isinstance(ref, str) or not ref.startswith("#"):
            return True
        value: Any = self._root
        for part in ref[1:].split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            value = value.get(name, True) if isinstance(value, dict) else True
        return value

    def _spend(self) -> None:
        self._room -= 1
        if self._room < 0:
            raise too_large()


def narrower(schema: Schema, is_empty: Callable[[Schema], bool]) -> Schema:
    try:
        made: Schema = _Narrowing(schema, is_empty).narrow(schema)
    except RecursionError:
        raise too_large() from None
    return made


def _list(schema: Schema, name: str) -> list[Any]:
    return value if isinstance(value := schema.get(name), list) else []


def _texts(schema: Schema, name: str) -> list[str]:
    return [value for value in _list(schema, name) if isinstance(value, str)]


def _map(schema: Schema, name: str) -> dict[str, Any]:
    return value if isinstance(value := schema.get(name), dict) else {}


def _values(schema: Schema) -> list[Any]:
    return [schema["const"]] if "const" in schema else _list(schema, "enum")


def _kinds(schema: Schema) -> frozenset[str]:
    """Types that its values may have."""
    named = schema.get("type")
    kinds = _with_whole({named} if isinstance(named, str) else set(_texts(schema, "type")) or set(_KINDS))
    values = {_TYPES.get(type(value), "object") for value in _values(schema)}
    return kinds & _with_whole(values) if values else kinds


def _with_whole(kinds: set[str]) -> frozenset[str]:
    return frozenset(kinds | {"integer"} if "number" in kinds else kinds)


def _all_of(schemas: Sequence[Any]) -> Any:
    return schemas[0] if len(schemas) == 1 else {"allOf": list(schemas)}


def _any_of(schemas: Sequence[Any]) -> Any:
    return schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}


def _other_text(words: Sequence[str]) -> str:
    """A pattern of all texts but these, letter by letter."""
    firsts = dict.fromkeys(word[0] for word in words if word)
    others = f"[^{''.join(map(re.escape, firsts))}]" if firsts else r"(?s:.)"
    ways = [] if "" in words else [""]
    ways += [f"{others}(?s:.*)"]
    ways += [re.escape(first) + _other_text([word[1:] for word in words if word[:1] == first]) for first in firsts]
    return f"(?:{'|'.join(ways)})"
