"""The levels of protection a request may ask for, and which of them this server offers.

This module knows the names and promises of the levels; it does not provide the protection.
"""

from __future__ import annotations

from msgspec import Struct

from cloister.errors import InvalidRequest, LevelUnavailable

HEADER = "X-Cloister-Protection"
OPEN = "open"


class Level(Struct, frozen=True):
    """One row of the table every user chooses from."""

    id: str
    enabled: bool
    provider_sees: str


LEVELS = (
    Level(OPEN, True, "Everything: your prompt, the answer, and when you asked."),
    Level("shared", False, "Everything; other tenants learn nothing sensitive from the shared prefix cache."),
    Level("partitioned", False, "The answer's tokens and per-layer attention contributions, never the prompt."),
    Level("obfuscated", False, "Several answers at once, without knowing which of them is real."),
    Level("isolated", False, "Nothing: a process of your own decodes alone on the shared weights."),
    Level("mpc", False, "Secret shares that reveal nothing, without any trusted hardware."),
)
_ENABLED = {level.id: level.enabled for level in LEVELS}


def choose_level(in_body: str | None, in_header: str | None) -> str:
    """The level to serve at. Nothing weaker than what was asked is ever chosen silently."""
    for asked in (in_body, in_header):
        if asked is None:
            continue
        if asked not in _ENABLED:
            raise InvalidRequest(
                "The level of protection is unknown.", param="protection", hint=f"Known: {', '.join(_ENABLED)}."
            )
        if not _ENABLED[asked]:
            raise LevelUnavailable(
                f"The level of protection {asked!r} is not offered by this server yet.",
                param="protection",
                hint="Leave `protection` out or ask for 'open', under which the provider sees everything.",
            )
    return OPEN
