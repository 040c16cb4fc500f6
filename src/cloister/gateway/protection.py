"""The levels of protection a request may ask for, and which of them this server offers.

This module knows the names and promises of the levels; it does not provide the protection.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from cloister.errors import InvalidRequest, LevelUnavailable
from cloister.messages.vault import VaultLevel

HEADER = "X-Cloister-Protection"
OPEN = "open"
PARTITIONED: VaultLevel = "partitioned"
ISOLATED: VaultLevel = "isolated"
MPC: VaultLevel = "mpc"
# What a request that asks for nothing gets: the first of these the server has. Less is served only to who asks for it.
_DEFAULTS: tuple[VaultLevel, ...] = (PARTITIONED, ISOLATED, MPC)

PROVIDER_SEES = {
    OPEN: "Everything: your prompt, the answer, and when you asked.",
    "shared": "Everything; other tenants learn nothing sensitive from the shared prefix cache.",
    PARTITIONED: (
        "The answer's tokens and, layer by layer, what your prompt adds to the attention, in a process sealed off "
        "from network and disk; not the prompt."
    ),
    "obfuscated": "Several answers at once, without knowing which of them is real.",
    ISOLATED: "When you ask and for how long; a process of your own decodes alone on the shared weights.",
    MPC: (
        "How long your prompt and the answer are, about, and when you asked: three parties compute on shares that say "
        "nothing unless two of them collude. The process that makes the shares reads the prompt; run it yourself with "
        "`cloister mpc proxy`. Slow: seconds for each token."
    ),
}


class Level(Struct, frozen=True):
    """One row of the table every user chooses from."""

    id: str
    enabled: bool
    provider_sees: str


class Levels:
    """The levels of one server."""

    def __init__(self, offered: Collection[str]) -> None:
        self.table = tuple(Level(name, name in offered, sees) for name, sees in PROVIDER_SEES.items())
        self.offered = tuple(level.id for level in self.table if level.enabled)
        self.default = next((level for level in _DEFAULTS if level in offered), None)

    def choose(self, in_body: str | None, in_header: str | None) -> str:
        """The level to serve at: just the one that was asked for, or the default; never one in its stead."""
        for asked in (in_body, in_header):
            if asked is not None and asked not in PROVIDER_SEES:
                raise InvalidRequest(
                    "The level of protection is unknown.",
                    param="protection",
                    hint=f"Known: {', '.join(PROVIDER_SEES)}.",
                )
        if in_body is not None and in_header is not None and in_body != in_header:
            raise InvalidRequest(
                f"The body asks for one level of protection and the header {HEADER} for another.",
                param="protection",
                hint="Ask in one of them, or for the same in both.",
            )
        asked = in_body if in_body is not None else in_header
        if asked is None:
            if self.default is None:
                raise LevelUnavailable(
                    "This server has no level of protection to serve at by default.",
                    param="protection",
                    hint="Ask for 'open' if the provider may see everything.",
                )
            return self.default
        if asked not in self.offered:
            raise LevelUnavailable(
                f"The level of protection {asked!r} is not offered by this server.",
                param="protection",
                hint=f"It offers: {', '.join(self.offered)}. At 'open' the provider sees everything."
                + (" To offer 'mpc', its operator runs: pip install '.[mpc]'" if asked == MPC else ""),
            )
        return asked
