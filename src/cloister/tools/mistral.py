"""Mistral: [TOOL_CALLS][{"name": …, "arguments": {…}}, …], or for each call [TOOL_CALLS]name[ARGS]{…}."""

import re
from typing import ClassVar

from cloister.tools.base import NAME, Between, Call, call, calls_of, load

_BEGIN, _ARGUMENTS = "[TOOL_CALLS]", "[ARGS]"
_ONE = re.compile(rf"\s*({NAME})(?:\[CALL_ID\]\w{{1,64}})?(?:\[ARGS\])?\s*(\{{.*)", re.DOTALL)


class Mistral(Between):
    ends: ClassVar[dict[str, str]] = {_BEGIN: ""}
    markers = (_BEGIN, _ARGUMENTS, "[CALL_ID]")

    def read(self, body: str) -> list[Call] | None:
        if body.lstrip().startswith("["):
            return calls_of(load(body), "arguments", "parameters")
        calls = []
        for part in body.split(_BEGIN):
            found = _ONE.fullmatch(part)
            one = call(found[1], found[2]) if found else None
            if one is None:
                return None
            calls.append(one)
        return calls
