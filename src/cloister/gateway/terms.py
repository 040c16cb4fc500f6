"""What a request asks for in its body or in a header: a level of protection this server offers, and a session.

What the levels are is in `levels.py`; this module knows how a request asks and how a refusal is worded. Sessions of
different tenants have nothing to do with each other, whatever they are called.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from msgspec import Struct

from cloister.errors import InvalidRequest, LevelUnavailable
from cloister.levels import LEVELS, OPEN, Level, LevelName, default_of
from cloister.request_fields import HEADER_PREFIX, LEVEL_HEADER, SESSION_HEADER

SESSION_PATTERN = r"^[!-~]{1,128}$"
_SESSION_NAME = re.compile(SESSION_PATTERN[1:-1])


def header_terms(headers: Iterable[tuple[str, str]]) -> tuple[str | None, str | None]:
    """The level and the session that the headers ask for; InvalidRequest for a header of ours that there is not."""
    asked: dict[str, str] = {}
    for name, value in headers:
        if not (name := name.lower()).startswith(HEADER_PREFIX):
            continue
        if name not in (LEVEL_HEADER.lower(), SESSION_HEADER.lower()) or name in asked:
            wrong = "is given twice" if name in asked else "is not known"
            raise InvalidRequest(
                f"The header {name[:64]!r} {wrong}.", hint=f"Known: {LEVEL_HEADER} and {SESSION_HEADER}, once each."
            )
        asked[name] = value
    return asked.get(LEVEL_HEADER.lower()), asked.get(SESSION_HEADER.lower())


class LevelInfo(Struct, frozen=True):
    """What the page and /v1/models say of one level. `uses_vault`: its prompt is in a process of its own."""

    id: str
    enabled: bool
    provider_sees: str
    uses_vault: bool
    slow: bool


class Levels:
    """The levels of one server."""

    def __init__(self, offered: Collection[str], why_not: Mapping[LevelName, str] | None = None) -> None:
        """`why_not` says of levels that are not offered what keeps this server from it, and what to do."""
        self._why_not: dict[str, str] = dict((why_not or {}).items())
        self.table = tuple(
            LevelInfo(level.name, level.name in offered, level.provider_sees, level.uses_vault, level.slow)
            for level in LEVELS.values()
        )
        self.offered = tuple(info.id for info in self.table if info.enabled)
        self.default = default_of(offered)

    def choose(self, in_body: str | None, in_header: str | None) -> Level:
        """The level to serve at: the one that was asked for, or the default; never another in its place."""
        for asked in (in_body, in_header):
            if asked is not None and asked not in LEVELS:
                raise InvalidRequest(
                    "The level of protection is unknown.", param="protection", hint=f"Known: {', '.join(LEVELS)}."
                )
        if in_body is not None and in_header is not None and in_body != in_header:
            raise InvalidRequest(
                f"The body asks for one level of protection and the header {LEVEL_HEADER} for another.",
                param="protection",
                hint="Ask in one of them, or for the same in both.",
            )
        asked = in_body if in_body is not None else in_header
        if asked is None:
            if self.default is None:
                raise LevelUnavailable(
                    "This server has no level of protection to serve at by default.",
                    param="protection",
                    hint=f"Ask for {OPEN!r} if the provider may see everything.",
                )
            return LEVELS[self.default]
        if asked not in self.offered:
            offered = f"It offers: {', '.join(self.offered)}. At {OPEN!r} the provider sees everything."
            raise LevelUnavailable(
                f"The level of protection {asked!r} is not offered by this server.",
                param="protection",
                hint=f"{offered} {self._why_not.get(asked, '')}".strip(),
            )
        return LEVELS[asked]


@dataclass(frozen=True, slots=True)
class Session:
    """A kept session waits in its vault for the next request; one that is not kept ends with its request."""

    name: str
    keep: bool


def choose_session(in_body: str | None, in_header: str | None) -> Session:
    """The session named, in one place or alike in both; without a name, a fresh one nobody else can guess."""
    for named in (in_body, in_header):
        if named is not None:
            check_session(named)
    if in_body is not None and in_header is not None and in_body != in_header:
        raise InvalidRequest(
            f"The body names one session and the header {SESSION_HEADER} another.",
            param="session",
            hint="Name it in one of them, or alike in both.",
        )
    named = in_body if in_body is not None else in_header
    if named is None:
        return Session(secrets.token_urlsafe(24), keep=False)
    return Session(named, keep=True)


def check_session(name: str) -> str:
    """The name, if it is one; InvalidRequest otherwise."""
    if not _SESSION_NAME.fullmatch(name):
        raise InvalidRequest(
            "A session's name has 1 to 128 visible ASCII characters.", param="session", hint="A random id will do."
        )
    return name
