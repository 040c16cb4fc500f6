"""Names in a request that client and server must agree on: Cloister's headers, and OpenAI's fields that no node serves.

Any other header that begins with `X-Cloister-`, and any other unknown field, is refused: it could be a level of
protection that somebody misspelt.
"""

from __future__ import annotations

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
"""What they hold changes nothing. A client that seals keeps them to itself; a node forgets them."""

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
request is refused. A client that seals keeps these values to itself."""
