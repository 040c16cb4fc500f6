"""How much and how long: the limits on bodies, choices, prompts and answers.

This module counts; it does not know what the bytes and tokens mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from starlette.requests import Request

from cloister.config import GatewaySettings
from cloister.errors import PromptTooLong
from cloister.gateway.errors import BodyTimeout, BodyTooLarge, UnsupportedMedia

MAX_CHOICES = 128
BODY_TIMEOUT_S = 30.0
JSON = "application/json"
_DRAIN_S = 2.0


async def read_body(request: Request, settings: GatewaySettings, wanted: str = JSON, limit: int | None = None) -> bytes:
    """The whole body, if it is of the wanted kind, comes in time and is no larger than allowed."""
    kind = request.headers.get("content-type", wanted).partition(";")[0].strip().lower()
    if kind != wanted:
        what = "JSON" if wanted == JSON else "a sealed request"
        raise UnsupportedMedia(f"The body must be {what}.", hint=f"Send `Content-Type: {wanted}`.")
    limit = settings.max_body_bytes if limit is None else limit
    allowed_s = min(BODY_TIMEOUT_S, settings.request_timeout_s)
    pieces = request.stream()
    body = bytearray()
    try:
        async with asyncio.timeout(allowed_s):
            async for piece in pieces:
                body += piece
                if len(body) > limit:
                    break
            else:
                return bytes(body)
    except TimeoutError:
        raise BodyTimeout(f"The request's body did not arrive within {allowed_s:g} s.") from None
    del body
    await _drain(pieces, limit)
    raise BodyTooLarge(f"The request's body exceeds the limit of {limit} bytes.")


def answer_tokens(prompt_tokens: int | None, asked: int | None, default: int, max_context: int) -> int:
    """How many tokens the answer may have; PromptTooLong when it and the prompt do not fit the context together.

    Where the prompt's length is not known here (None), whoever reads the prompt caps the answer to what is left.
    """
    room = max_context - (1 if prompt_tokens is None else prompt_tokens)
    wanted = asked if asked is not None else max(1, min(default, room))
    if wanted <= room:
        return wanted
    if prompt_tokens is None:
        requested = f"{wanted} were requested for the answer alone."
    else:
        requested = f"{prompt_tokens + wanted} were requested ({prompt_tokens} in the prompt, {wanted} for the answer)."
    raise PromptTooLong(
        f"This model's context holds {max_context} tokens; {requested}",
        param="max_tokens" if room > 0 else None,
        hint="Shorten the prompt or ask for fewer tokens.",
    )


async def _drain(pieces: AsyncIterator[bytes], limit: int) -> None:
    """Read a little of what is still coming: a client cut off in the middle of sending would not see the answer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_S):
            async for piece in pieces:
                limit -= len(piece)
                if limit < 0:
                    return
