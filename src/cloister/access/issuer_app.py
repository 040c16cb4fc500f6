"""An issuer's HTTP: its list of keys for everyone, and tokens for tenants that show an API key (RFC 9578 §4, §5)."""

import logging
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cloister.access.batches import BATCH, DIRECTORY, ONE, TOKENS, read_requests, write_responses
from cloister.access.issuing import MOST_AT_ONCE, Issuer
from cloister.access.token_keys import MEDIA_TYPE
from cloister.access.tokens import REQUEST_BYTES
from cloister.errors import CloisterError, QueueFull, TokenInvalid, Unauthorized
from cloister.keys import KeyRing

_MOST_BYTES = 8 + MOST_AT_ONCE * REQUEST_BYTES

log = logging.getLogger(__name__)


def issuer_app(issuer: Issuer, keys: KeyRing) -> Starlette:
    async def directory(request: Request) -> Response:
        return Response(issuer.keys.encode(), media_type=MEDIA_TYPE, headers={"Cache-Control": "max-age=600"})

    async def tokens(request: Request) -> Response:
        try:
            tenant = keys.caller(_key(request)).tenant
            media = request.headers.get("content-type", "")
            body = await _body(request.stream())
            if media == ONE[0]:
                return Response(issuer.issue(tenant, [body])[0], media_type=ONE[1])
            if media == BATCH[0]:
                return Response(write_responses(issuer.issue(tenant, read_requests(body))), media_type=BATCH[1])
            return _refusal(415, f"Send {ONE[0]} or {BATCH[0]}.")
        except Unauthorized as wrong:
            status = 400 if isinstance(wrong, TokenInvalid) else 401
            return _refusal(status, str(wrong))
        except QueueFull as wrong:
            return _refusal(429, str(wrong), {"Retry-After": str(wrong.retry_after)})
        except CloisterError as wrong:
            log.error("A token could not be issued. %s", wrong)
            return _refusal(500, "The issuer cannot answer now.")

    return Starlette(routes=[Route(DIRECTORY, directory), Route(TOKENS, tokens, methods=["POST"])])


def _key(request: Request) -> str | None:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key if scheme.lower() == "bearer" else None


async def _body(stream: AsyncIterator[bytes]) -> bytes:
    body = b""
    async for piece in stream:
        body += piece
        if len(body) > _MOST_BYTES:
            raise TokenInvalid(f"A request asks for at most {MOST_AT_ONCE} tokens.")
    return body


def _refusal(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return Response(message + "\n", status, headers, media_type="text/plain")
