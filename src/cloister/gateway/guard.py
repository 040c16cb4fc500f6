"""The application's outermost layer (an id and a count, errors as responses), and limits on bodies. Raw ASGI."""

import asyncio
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import suppress

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cloister.addresses import is_loopback
from cloister.config import GatewaySettings
from cloister.errors import ServiceUnavailable
from cloister.gateway.drain import Drain
from cloister.gateway.errors import BodyTimeout, BodyTooLarge, ForeignHost, WrongMedia, error_response, log_unexpected
from cloister.gateway.metrics import Metrics
from cloister.process.log_lines import REQUEST

BODY_TIMEOUT_S = 30.0
JSON = "application/json"
_DRAIN_S = 2.0
_PORT = re.compile(r":\d+$")


async def read_body(request: Request, settings: GatewaySettings, wanted: str = JSON, limit: int | None = None) -> bytes:
    kind = request.headers.get("content-type", wanted).partition(";")[0].strip().lower()
    if kind != wanted:
        what = "JSON" if wanted == JSON else "a sealed request"
        raise WrongMedia(f"The body must be {what}.", hint=f"Send `Content-Type: {wanted}`.")
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


async def _drain(pieces: AsyncIterator[bytes], limit: int) -> None:
    """Read a little more: a client that is cut off while it sends would not see the answer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_S):
            async for piece in pieces:
                limit -= len(piece)
                if limit < 0:
                    return


class Guard:
    def __init__(self, app: ASGIApp, metrics: Metrics, drain: Drain, *, local_only: bool) -> None:
        self._app = app
        self._drain = drain
        self._metrics = metrics
        self._local_only = local_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        REQUEST.set(f"req_{secrets.token_hex(12)}")
        identity = (b"x-request-id", REQUEST.get().encode())
        status: int | None = None
        unread = any(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"])

        async def watched() -> Message:
            nonlocal unread
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body"):
                unread = False
            return message

        async def guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), identity]
                if unread:  # answered before its body came: otherwise uvicorn would read all of it
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        try:
            if self._local_only and not _names_this_machine(scope):
                hint = "Use 127.0.0.1 in the URL, or serve with a keys file."
                raise ForeignHost("With the development key this server answers to localhost only.", hint=hint)
            with self._drain.request(scope["path"]):
                await self._app(scope, watched, guarded)
        except (ForeignHost, ServiceUnavailable) as refusal:
            await error_response(refusal)(scope, watched, guarded)
        except Exception as error:
            log_unexpected(error)
            if status is None:
                await error_response(error)(scope, watched, guarded)
        finally:
            self._metrics.answered(_route(scope), f"{status // 100}xx" if status else "disconnected")


def _names_this_machine(scope: Scope) -> bool:
    """Whether the Host header is a loopback name. A page that rebinds its own name to 127.0.0.1 sends that name."""
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    return all(is_loopback(_PORT.sub("", host.decode("latin-1")).strip("[]")) for host in hosts)


def _route(scope: Scope) -> str:
    """The route's template; a path itself may hold user content."""
    return getattr(scope.get("route"), "path", None) or "other"
