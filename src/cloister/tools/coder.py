"""Qwen3-Coder: <tool_call><function=name><parameter=key>value</parameter></function></tool_call>. Values have no
quotes: what is a number, a switch, null, a list or an object as JSON is that, and all else is text."""

import re
from typing import Any, ClassVar

from cloister.tools.base import NAME, Between, Call, call, load

_CALL = re.compile(rf"\s*<function=({NAME})>(.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]{1,256})>\n?(.*?)\n?</parameter>", re.DOTALL)
_SWITCHES = {"True": True, "False": False, "null": None}  # its template writes some as Python does


class Coder(Between):
    ends: ClassVar[dict[str, str]] = {"<tool_call>": "</tool_call>"}
    quote = re.compile(r"<parameter=|</parameter>")
    markers = ("<tool_call>", "</tool_call>")

    def read(self, body: str) -> list[Call] | None:
        found = _CALL.fullmatch(body)
        if found is None:
            return None
        arguments, at = dict[str, Any](), 0
        while part := _PARAMETER.match(found[2], at):
            arguments[part[1]] = _value(part[2])
            at = part.end()
        one = call(found[1], arguments) if not found[2][at:].strip() else None
        return None if one is None else [one]


def _value(text: str) -> Any:
    if text in _SWITCHES:
        return _SWITCHES[text]
    value = load(text)
    return text if value is None or isinstance(value, str) else value
