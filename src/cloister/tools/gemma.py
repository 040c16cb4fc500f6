"""Gemma 4 and FunctionGemma: <|tool_call>call:name{key:<|"|>text<|"|>,other:1}<tool_call|>, or with <escape>."""

import json
import re
from typing import ClassVar

from cloister.tools.base import NAME, Between, Call, call

_QUOTE, _ESCAPE = '<|"|>', "<escape>"
_CALL = re.compile(rf"\s*call:({NAME})\s*(\{{.*\}})\s*", re.DOTALL)
_PART = re.compile(
    r'<\|"\|>(?P<quoted>.*?)<\|"\|>|<escape>(?P<escaped>.*?)<escape>'
    r"|(?P<key>[\w$.-]+)(?=\s*:)|(?P<other>-?[0-9][0-9.eE+-]*|true|false|null|[{}\[\],:]|\s+)",
    re.DOTALL,
)


class Gemma(Between):
    ends: ClassVar[dict[str, str]] = {
        "<|tool_call>": "<tool_call|>",
        "<start_function_call>": "<end_function_call>",
    }
    quote = re.compile(r'<\|"\|>|<escape>')
    markers = (*ends, *ends.values(), _QUOTE, _ESCAPE)

    def read(self, body: str) -> list[Call] | None:
        found = _CALL.fullmatch(body)
        one = call(found[1], _as_json(found[2])) if found else None
        return None if one is None else [one]


def _as_json(text: str) -> str:
    """No JSON where the text is not what the family writes."""
    pieces, at = [], 0
    while at < len(text):
        if (part := _PART.match(text, at)) is None:
            return "?"
        words = next((part[name] for name in ("quoted", "escaped", "key") if part[name] is not None), None)
        pieces.append(part[0] if words is None else json.dumps(words))
        at = part.end()
    return "".join(pieces)
