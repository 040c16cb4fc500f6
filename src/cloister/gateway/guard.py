"""The outermost layer: every request gets an id, is counted, and never ends in an exception.

It sees routes and statuses, never bodies. Pure ASGI: it stands on the path of every streamed token.
"""

from __future__ import annotations

import secrets

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cloister.gateway.errors import error_response, log_unexpected
from cloister.gateway.metrics import Metrics


class Guard:
    """Wraps the whole application."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        identity = (b"x-request-id", f"req_{secrets.token_hex(12)}".encode())
        status: int | None = None

        async def guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), identity]
            await send(message)

        try:
            await self._app(scope, receive, guarded)
        except Exception as error:
            log_unexpected(error)
            if status is None:
                await error_response(error)(scope, receive, guarded)
        finally:
            self._metrics.answered(_route(scope), f"{status // 100}xx" if status else "disconnected")


def _route(scope: Scope) -> str:
    """The route's template: a path that somebody typed is no label."""
    return getattr(scope.get("route"), "path", None) or "other"
