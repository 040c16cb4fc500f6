"""Runs an application under uvicorn, in the backend's event loop."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from cloister.config import GatewaySettings
from cloister.gateway.connection import bounded
from cloister.gateway.port import bind

_GRACE_S = 1
_BACKLOG = 2048


async def serve(app: ASGIApp, settings: GatewaySettings, on_ready: Callable[[str], None]) -> None:
    """`on_ready` gets the URL once it listens. Running answers get time to end."""
    listener = bind(settings)
    listener.listen(_BACKLOG)
    # No access log: paths and addresses are user data. An answer cut off at the end is not worth an error either.
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    config = uvicorn.Config(
        app,
        http=bounded(settings.max_connections, settings.max_connections_of_one),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        # Only a proxy on this machine may name the client's address; no environment variable widens that.
        proxy_headers=True,
        forwarded_allow_ips="127.0.0.1,::1",
        timeout_graceful_shutdown=_GRACE_S,
    )
    await _Server(config, lambda: on_ready(_url(settings, listener))).serve(sockets=[listener])


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """uvicorn would raise the signal again at the end, and kill the process before the backend is closed."""
        super().handle_exit(sig, frame)
        self._captured_signals.clear()


def _url(settings: GatewaySettings, listener: socket.socket) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{listener.getsockname()[1]}"
