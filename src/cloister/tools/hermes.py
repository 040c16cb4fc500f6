"""Hermes, Qwen 2.5 and Qwen 3: <tool_call>{"name": …, "arguments": {…}}</tool_call>. The manner of every model whose
template has no tools."""

import re
from typing import ClassVar

from cloister.tools.base import NAME, Between, Call, calls_of, load


class Hermes(Between):
    ends: ClassVar[dict[str, str]] = {"<tool_call>": "</tool_call>"}
    markers = ("<tool_call>", "</tool_call>")
    head = re.compile(rf'\s*{{\s*"name":\s*"({NAME})",\s*"(?:arguments|parameters)":\s*')

    def read(self, body: str) -> list[Call] | None:
        value = load(body)
        return calls_of(value if isinstance(value, list) else [value], "arguments", "parameters")
