"""What an answer must look like that has to call: a grammar in llguidance's Lark, as each family writes calls."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from cloister.grammar.constraint import json_part
from cloister.tools.families import FamilyName, Parsing

_MOST_SEEN = 64
_ANY = {"type": "object"}
_WORD = re.compile(r"[^>\n]{1,256}")
# To the end of a value of Qwen3-Coder's; a form of its text is not enforced.
_TEXT = r"/([^<]|<[^\/])*\n<\/parameter>\n/"
# Gemma writes arguments in its own way: their form is right, their schema is not enforced.
_GEMMA = """object: "{" (pair ("," pair)*)? "}"
pair: /[A-Za-z_][A-Za-z0-9_]{0,63}/ ":" value
value: object | "[" (value ("," value)*)? "]" | QUOTE /[^<>|]*/ QUOTE | number | "true" | "false" | "null"
number: /-?[0-9]{1,15}(\\.[0-9]{1,15})?/
"""


class _Manner(NamedTuple):
    """Around all calls, and around each one's arguments."""

    begin: tuple[str, ...]
    between: tuple[str, ...]
    end: tuple[str, ...]
    before: Callable[[str], tuple[str, ...]]
    after: tuple[str, ...]


def _object(key: str) -> Callable[[str], tuple[str, ...]]:
    return lambda name: (f'{{"name": "{name}", "{key}": ',)


_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_MANNERS: dict[FamilyName, _Manner] = {
    "hermes": _Manner((_OPEN, "\n"), ("\n", _CLOSE, "\n", _OPEN, "\n"), ("\n", _CLOSE), _object("arguments"), ("}",)),
    "qwen3_coder": _Manner((), ("\n",), (), lambda name: (_OPEN, f"\n<function={name}>\n"), ("</function>\n", _CLOSE)),
    "llama3": _Manner((), ("; ",), (), _object("parameters"), ("}",)),
    "mistral": _Manner(("[TOOL_CALLS]", "["), (", ",), ("]",), _object("arguments"), ("}",)),
    "gemma": _Manner((), (), (), lambda name: ("<|tool_call>", f"call:{name}"), ("<tool_call|>",)),
    "harmony": _Manner(
        (),
        ("<|start|>", "assistant"),
        (),
        lambda name: ("<|channel|>", f"commentary to=functions.{name} ", "<|constrain|>", "json", "<|message|>"),
        ("<|call|>",),
    ),
}
_WITH_ARGS = _Manner((), (), (), lambda name: ("[TOOL_CALLS]", name, "[ARGS]"), ())  # Mistral's newer one
_OF_FUNCTION_GEMMA = {"<|tool_call>": "<start_function_call>", "<tool_call|>": "<end_function_call>"}


def lark_of(
    parsing: Parsing,
    tools: Sequence[Mapping[str, Any]],
    *,
    parallel: bool = True,
    thinks: bool | None = None,
    answer: str = "",
) -> str:
    """The grammar of one call of these tools or, `parallel`, of several; or of an `answer`, a part of a grammar."""
    family, tokens = parsing.family, {name: token for token, name in parsing.special.items()}
    manner = _WITH_ARGS if family == "mistral" and "[ARGS]" in parsing.template else _MANNERS[family]
    older = family == "gemma" and "<start_function_call>" in parsing.template

    def written(parts: Sequence[str]) -> str:
        parts = [_OF_FUNCTION_GEMMA.get(part, part) if older else part for part in parts]
        return " ".join(f"<[{tokens[part]}]>" if part in tokens else json.dumps(part) for part in parts)

    more = f"({written(manner.between)} call)*" if parallel else ""
    thought = ""
    if parsing.pair and parsing.opens(thinks):
        end = parsing.pair[1]
        first, second, whole = (re.escape(part).replace("/", r"\/") for part in (end[0], end[1], end))
        thought = f"/(?s:.*)/ {written((end,))}" if end in tokens else f"/([^{first}]|{first}[^{second}])*{whole}/"
        thought += r" /\s{0,4}/ "
    lines = [f"start: {thought}({' | '.join([*['calls'][: len(tools)], *['answer'][: len(answer)]])})"]
    header = written(("<|channel|>", "final", "<|message|>")) if family == "harmony" and tools else ""
    lines += [f"answer: {header} ({answer})"] if answer else []
    if not tools:
        return "\n".join(lines)
    lines.append(f"calls: {written(manner.begin)} call {more} {written(manner.end)}")
    lines.append(f"call: {' | '.join(f'call{at}' for at in range(len(tools)))}")
    for at, tool in enumerate(tools):
        function = tool["function"]
        if answer and family == "llama3":
            lines.append(f"call{at}: {_bare(function)}")
            continue
        schema = _given(function)
        schema = _parameters(schema) if family == "qwen3_coder" else json_part(schema)
        arguments = "object" if family == "gemma" else f"arguments{at}"
        lines.append(f"call{at}: {written(manner.before(function['name']))} {arguments} {written(manner.after)}")
        lines += [] if family == "gemma" else [f"arguments{at}: {schema}"]
    quote = "<escape>" if older else '<|"|>'
    return "\n".join([*lines, _GEMMA.replace("QUOTE", written((quote,))) if family == "gemma" else ""])


_DEFINED = ("$defs", "definitions")
_OPENS = frozenset(("additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref"))


def _given(function: Mapping[str, Any]) -> Any:
    """The schema of its arguments. A function has those that it names and no others, unless its schema allows them."""
    schema = function.get("parameters") or _ANY
    named = "properties" in schema and not _OPENS & schema.keys()
    return {**schema, "additionalProperties": False} if named else schema


def _bare(function: Mapping[str, Any]) -> str:
    """A call as a schema: where an answer in JSON may begin as it does, the lexer cannot take a literal back."""
    given = _given(function)
    properties = {"name": {"const": function["name"]}, "parameters": given}
    shared = {name: given[name] for name in _DEFINED if name in given}
    whole = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return json_part({**shared, **whole})


def _parameters(schema: Mapping[str, Any]) -> str:
    """As Qwen3-Coder writes them, in the schema's order."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return rf"(/<parameter=[A-Za-z_][A-Za-z0-9_]{{0,63}}>\n/ {_TEXT})*"
    required, parts = schema.get("required"), list[str]()
    shared = {name: schema[name] for name in _DEFINED if name in schema}
    for name, given in properties.items():
        if not isinstance(given, dict) or not _WORD.fullmatch(name):
            continue
        end = json.dumps("\n</parameter>\n")
        value = _TEXT if _is_text(given, schema) else f"{json_part({**shared, **given})} {end}"
        if isinstance(choices := given.get("enum"), list) and all(isinstance(one, str) for one in choices):
            value = f"({' | '.join(map(json.dumps, choices))}) {end}"
        part = f"({json.dumps(f'<parameter={name}>' + chr(10))} {value})"
        parts.append(part if isinstance(required, list) and name in required else f"{part}?")
    return " ".join(parts) or '""'


def _is_text(given: Any, whole: Mapping[str, Any]) -> bool:
    """Whether the value may be a text, which is written without quotes. What is too wide to tell is JSON."""
    waiting, seen = [given], 0
    while waiting and seen < _MOST_SEEN:
        one, seen = waiting.pop(), seen + 1
        if not isinstance(one, dict):
            continue
        kinds, path = one.get("type"), str(one.get("$ref")).split("/")
        if kinds == "string" or (isinstance(kinds, list) and "string" in kinds):
            return True
        if len(path) == 3 and isinstance(defined := whole.get(path[1]), dict):
            waiting.append(defined.get(path[2]))
        for name in ("anyOf", "oneOf"):
            waiting += others[:_MOST_SEEN] if isinstance(others := one.get(name), list) else []
    return False
