"""Names in a request that client and server must agree on: Cloister's headers, and OpenAI's fields that no node uses.

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
        *("prompt_cache_retention", "reasoning_effort", "verbosity", "modalities", "audio", "web_search_options"),
        *("tool_choice", "parallel_tool_calls", "function_call"),
    )
)
"""What they hold changes nothing. A client that seals keeps them to itself; a node forgets them."""
