"""The session a request belongs to: a name its caller chose, or a random one that ends with the request.

Sessions of different tenants have nothing to do with each other, whatever they are called.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from cloister.errors import InvalidRequest

HEADER = "X-Cloister-Session"
PATTERN = r"^[!-~]{1,128}$"
_NAME = re.compile(PATTERN[1:-1])


@dataclass(frozen=True, slots=True)
class Session:
    """A kept session waits in its vault for the next request; one that is not kept ends with its request."""

    name: str
    keep: bool


def choose_session(in_body: str | None, in_header: str | None) -> Session:
    """The session named, in one place or alike in both; without a name, a fresh one nobody else can guess."""
    for named in (in_body, in_header):
        if named is not None:
            check_name(named)
    if in_body is not None and in_header is not None and in_body != in_header:
        raise InvalidRequest(
            f"The body names one session and the header {HEADER} another.",
            param="session",
            hint="Name it in one of them, or alike in both.",
        )
    named = in_body if in_body is not None else in_header
    if named is None:
        return Session(secrets.token_urlsafe(24), keep=False)
    return Session(named, keep=True)


def check_name(name: str) -> str:
    """The name, if it is one; InvalidRequest otherwise."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            "A session's name has 1 to 128 visible ASCII characters.", param="session", hint="A random id will do."
        )
    return name
