"""Names in a request that client and server must agree on: Cloister's headers, and OpenAI's fields that no node serves.

Any other header that begins with `X-Cloister-`, and any other unknown field, is refused: it could be a misspelt
level of protection. A JSON object that has a name twice is refused, too: RFC 8259 §4 leaves open which of the two
counts, so a proxy and a node could read two levels. The API, vaults that open sealed prompts, and clients check this.
"""

from __future__ import annotations

import json
from collections.abc import Container
from typing import Any

from cloister.errors import InvalidRequest

SESSION_PATTERN = r"^[!-~]{1,128}$"
HEADER_PREFIX = "x-cloister-"
LEVEL_HEADER = "X-Cloister-Protection"
SESSION_HEADER = "X-Cloister-Session"
SEQUENCES_HEADER = "X-Cloister-Sequences"
"""Of an answer at `obfuscated`: how many streams it was one of (λ+1), or how many it brings."""

UNUSED = frozenset(
    (
        *("user", "metadata", "store", "prediction", "service_tier", "safety_identifier", "prompt_cache_key"),
        *("prompt_cache_retention", "reasoning_effort", "verbosity", "parallel_tool_calls"),
    )
)
"""Their values change nothing. A client that seals does not send them; a node drops them."""

SAY_NOTHING: dict[str, tuple[object, ...]] = {
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "web_search_options": (None,),
    "suffix": (None, ""),
    "response_format": (None, {"type": "text"}),
}
"""Fields that ask for what no node serves, and the values with which they ask for nothing. With any other value the
request is refused. A client that seals does not send these values."""


def refuse_repeated_names(text: bytes, known: Container[str] | None = None) -> None:
    """InvalidRequest where an object at any depth has a name twice, and where the text is not JSON.

    The message names it; where `known` names are given, only one of those: any other is user content.
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
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise _RepeatedName(name)
        seen.add(name)
