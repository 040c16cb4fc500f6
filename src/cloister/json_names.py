"""Names in a request's JSON: an object that has one of them twice is refused.

RFC 8259 §4 leaves open which of the two counts, and parsers differ: with `protection` given twice, a proxy and a node
could read two levels. Everything that takes a request from a user asks here: the API, a vault that opens a sealed
prompt, and the clients that seal or obfuscate.
"""

from __future__ import annotations

import json
from collections.abc import Container
from typing import Any

from cloister.errors import InvalidRequest


def refuse_repeated_names(text: bytes, known: Container[str] | None = None) -> None:
    """InvalidRequest where an object at any depth has a name twice, and for what is no JSON.

    The message says which name; where `known` are given, only if it is one of them: the others are the user's words.
    """
    try:
        json.loads(text, object_pairs_hook=_check)
        return
    except _RepeatedName as repeated:
        name = repeated.name[:64]
    except (ValueError, RecursionError):
        name = None
    if name is None:
        raise InvalidRequest("This is not valid JSON.")
    if known is not None and name not in known:
        raise InvalidRequest("A field is given twice.", hint="Give each field of an object once.")
    raise InvalidRequest(f"The field {name!r} is given twice.", param=name, hint="Give it once.")


class _RepeatedName(Exception):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


def _check(pairs: list[tuple[str, Any]]) -> None:
    """Nothing is built of the object."""
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise _RepeatedName(name)
        seen.add(name)
