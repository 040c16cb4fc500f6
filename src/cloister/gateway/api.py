"""What every endpoint has at hand (`Api`), and what a call asks for: caller, deadline, level of protection, session."""

import asyncio
import hashlib
import re
import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.responses import Response

from cloister.access.spent import tenant_of
from cloister.access.tokens import SCHEME, token_of
from cloister.backend.base import Backend
from cloister.config import GatewaySettings
from cloister.errors import InvalidRequest, LevelUnavailable
from cloister.fairness import ANONYMOUS
from cloister.gateway.generation import WatchedAnswers
from cloister.gateway.metrics import Metrics
from cloister.keys import KeyRing
from cloister.levels import LEVELS, OPEN, PARTITIONED, Decodes, Level, LevelName, Reader, default_of
from cloister.messages.controller_frontend import KeyEntry
from cloister.obfuscation.index import Prf, new_secret
from cloister.prompts.tokenizer import Tokenizer
from cloister.request_fields import HEADER_PREFIX, LEVEL_HEADER, SESSION_HEADER, SESSION_PATTERN
from cloister.tools.families import Parsing

_bearer = HTTPBearer(auto_error=False, description="An API key of this server.")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]
_SESSION_NAME = re.compile(SESSION_PATTERN[1:-1])


class LevelInfo(msgspec.Struct, frozen=True):
    """What the page and /v1/models show of one level. `uses_vault`: a vault holds the prompt. `verified`: how its
    answers are (`--verify`), or `asked`: those alone that ask for it."""

    id: str
    enabled: bool
    provider_sees: str
    uses_vault: bool
    slow: bool
    verified: str | None


class Levels:
    def __init__(
        self, offered: Collection[str], why_not: Mapping[LevelName, str] | None = None, verify: str = "off"
    ) -> None:
        self._why_not: dict[str, str] = dict((why_not or {}).items())
        alone = {Reader.API: "asked" if PARTITIONED in offered else None, Reader.VAULT: verify.replace("off", "asked")}
        self.table = tuple(
            LevelInfo(one.name, one.name in offered, one.provider_sees, one.uses_vault, one.slow, how)
            for one in LEVELS.values()
            for how in [alone[one.reader] if one.decodes is Decodes.SERVICE else None]
        )
        self.offered = tuple(info.id for info in self.table if info.enabled)
        self.default = default_of(offered)

    def choose(self, in_body: str | None, in_header: str | None) -> Level:
        """The level asked for, or the default; another level never takes its place."""
        for asked in (in_body, in_header):
            if asked is not None and asked not in LEVELS:
                hint = f"Known: {', '.join(LEVELS)}."
                raise InvalidRequest("The level of protection is unknown.", param="protection", hint=hint)
        conflict = f"The body asks for one level of protection and the header {LEVEL_HEADER} for another."
        asked = _one_of(in_body, in_header, conflict, "protection") or self.default
        if asked is None:
            message = "This server has no level of protection to serve at by default."
            hint = f"Ask for {OPEN!r} if the provider may see everything."
            raise LevelUnavailable(message, param="protection", hint=hint)
        if asked not in self.offered:
            offered = f"It offers: {', '.join(self.offered)}. At {OPEN!r} the provider sees everything."
            message = f"The level of protection {asked!r} is not offered by this server."
            hint = f"{offered} {self._why_not.get(asked, '')}".strip()
            raise LevelUnavailable(message, param="protection", hint=hint)
        return LEVELS[asked]

    def verified(self, asked: Level) -> Level:
        """The way of an answer that a vault verifies: it reads the whole prompt, so the service need not."""
        if asked.uses_vault:
            return asked
        if PARTITIONED not in self.offered:
            raise LevelUnavailable("No vault here can verify an answer.", param="verify", hint="Leave it out.")
        return LEVELS[PARTITIONED]

    def way(self, asked: Level, requested: Collection[str], *, logits: bool = False) -> Level:
        """To a process that may see all that is requested and chooses the tokens. InvalidRequest for what that way
        does not serve either (Level.refuse)."""
        way = LEVELS[asked.way(requested)]
        if way.name not in self.offered:
            message = f"With this, an answer at {asked.name!r} needs the level {way.name!r}, which is not offered here."
            raise LevelUnavailable(message, param=next(name for name in asked.alone if name in requested))
        moot = {"obfuscation"} if asked.obfuscates and not way.obfuscates else set()  # no prompts are made up
        way.refuse({*requested} - moot, logits=logits)
        return way


def _one_of(in_body: str | None, in_header: str | None, message: str, param: str) -> str | None:
    if in_body is not None and in_header is not None and in_body != in_header:
        raise InvalidRequest(message, param=param, hint="Use one of them, or the same value in both.")
    return in_body if in_body is not None else in_header


@dataclass(frozen=True, slots=True)
class RequestSession:
    """The session of one request. A kept one stays in its vault for the next request; any other ends with its own."""

    name: str
    keep: bool

    @classmethod
    def choose(cls, in_body: str | None, in_header: str | None, tenant: str = "") -> "RequestSession":
        for named in (in_body, in_header):
            if named is not None:
                check_session(named)
        message = f"The body names one session and the header {SESSION_HEADER} another."
        name = _one_of(in_body, in_header, message, "session")
        if name is not None and tenant.startswith(ANONYMOUS):
            message = "A call that a token pays for belongs to no session: the session would link it with others."
            raise InvalidRequest(message, param="session", hint="Leave the session out, or send an API key.")
        return cls(secrets.token_urlsafe(24), keep=False) if name is None else cls(name, keep=True)


def check_session(name: str) -> None:
    if not _SESSION_NAME.fullmatch(name):
        message = "A session's name has 1 to 128 visible ASCII characters."
        raise InvalidRequest(message, param="session", hint="A random id will do.")


@dataclass(frozen=True)
class Api:
    backend: Backend
    tokenizer: Tokenizer
    model: str
    created: int
    settings: GatewaySettings
    keys: KeyRing
    levels: Levels
    watched: WatchedAnswers
    metrics: Metrics
    parsing: Parsing = field(default_factory=Parsing)
    index: Prf = field(default_factory=lambda: Prf(new_secret()))  # at `obfuscated`: orders plain HTTP's streams


@dataclass(frozen=True, slots=True)
class CallContext:
    """Caller, deadline (in the loop's time), and the level and session that headers name."""

    caller: KeyEntry
    deadline: float
    protection: str | None
    session: str | None


def api_of(request: Request) -> Api:
    api = request.app.state.api
    assert isinstance(api, Api)
    return api


async def _paying_caller(request: Request, credentials: Credentials) -> KeyEntry:
    """A key's owner; or, for an anonymous token that is spent now, a tenant of this one call."""
    given = request.headers.get("authorization", "")
    if not given.lower().startswith(f"{SCHEME.lower()} "):
        return caller_of(request, credentials)
    token = token_of(given)
    await api_of(request).backend.spend(token.encode())
    return KeyEntry(hashlib.sha256(token.nonce).digest(), tenant_of(token))


def caller_of(request: Request, credentials: Credentials) -> KeyEntry:
    return api_of(request).keys.caller(credentials.credentials if credentials else None)


def json_response(value: msgspec.Struct, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), headers=headers, media_type="application/json")


def _level_and_session(headers: Iterable[tuple[str, str]]) -> tuple[str | None, str | None]:
    asked: dict[str, str] = {}
    for name, value in headers:
        if not (name := name.lower()).startswith(HEADER_PREFIX):
            continue
        if name not in (LEVEL_HEADER.lower(), SESSION_HEADER.lower()) or name in asked:
            wrong = "is given twice" if name in asked else "is not known"
            hint = f"Known: {LEVEL_HEADER} and {SESSION_HEADER}, once each."
            raise InvalidRequest(f"The header {name[:64]!r} {wrong}.", hint=hint)
        asked[name] = value
    return asked.get(LEVEL_HEADER.lower()), asked.get(SESSION_HEADER.lower())


async def _context(request: Request, credentials: Credentials) -> CallContext:
    deadline = asyncio.get_running_loop().time() + api_of(request).settings.request_timeout_s
    level_and_session = _level_and_session(request.headers.items())  # a token is not spent on a mistake in these
    return CallContext(await _paying_caller(request, credentials), deadline, *level_and_session)


Call = Annotated[CallContext, Depends(_context)]
