"""Cloister's headers, and OpenAI's fields that no node serves. Any other is refused: it could be a misspelt level of
protection. So is a JSON name twice: RFC 8259 §4 leaves open which counts."""

import json
from collections.abc import Container
from typing import Any

from cloister.errors import InvalidRequest

SESSION_PATTERN = r"^[!-~]{1,128}$"
HEADER_PREFIX = "x-cloister-"
LEVEL_HEADER = "X-Cloister-Protection"
SESSION_HEADER = "X-Cloister-Session"
SEQUENCES_HEADER = "X-Cloister-Sequences"  # of an answer at `obfuscated`: λ+1
# Of such an answer: `kept` by the session, or `fresh`: who compares requests finds the values that come again.
SUBSTITUTES_HEADER = "X-Cloister-Substitutes"

UNUSED = frozenset(
    (
        *("user", "metadata", "store", "prediction", "service_tier", "safety_identifier", "prompt_cache_key"),
        *("prompt_cache_retention", "verbosity"),
    )
)  # their values change nothing; clients that seal leave them out

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")  # of reasoning

SAY_NOTHING: dict[str, tuple[object, ...]] = {
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "web_search_options": (None,),
    "suffix": (None, ""),
}  # fields that no node serves, with the values that ask for nothing. A client that seals does not send these


def refuse_repeated_names(text: bytes, known: Container[str] | None = None) -> None:
    """Also where the text is not JSON. The message shows a name only if it is `known`: any other is user content."""
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
