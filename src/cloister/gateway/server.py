"""An application under uvicorn, with limits that uvicorn lacks: on connections, on the size and time of heads, and on
the time of TLS's handshake. Connections count from their first packet on."""

import asyncio
import logging
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import msgspec
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cloister.addresses import is_loopback
from cloister.certificate import ServerTls
from cloister.config import GatewaySettings
from cloister.errors import SetupError
from cloister.port import bind

HEAD_S = 10.0
FAREWELL_S = 5.0  # for a client to say under TLS that it, too, sends no more
MAX_HEAD_BYTES = 32 * 1024
MAX_HEADERS = 100

_REASONS = {
    "head_too_large": (431, "Request Header Fields Too Large", "The request's head is too large."),
    "head_timeout": (408, "Request Timeout", f"The request's head did not arrive within {HEAD_S:g} s."),
    "invalid_http": (400, "Bad Request", "This is not HTTP."),
}


@dataclass
class Connections:
    """All connections of one server. `most_of_one` bounds one address, except loopback: that may be a proxy."""

    most: int
    most_of_one: int
    open: int = 0
    of_address: Counter[str] = field(default_factory=Counter)
    silent: "dict[BoundedConnection, None]" = field(default_factory=dict)
    """Connections whose next head is awaited, the oldest first."""

    def admit(self, address: str) -> bool:
        if self.of_address[address] >= self.most_of_one and not is_loopback(address):
            return False
        if self.open >= self.most:
            if not self.silent:
                return False
            next(iter(self.silent)).drop()
        return True

    def add(self, address: str) -> None:
        self.open += 1
        self.of_address[address] += 1

    def remove(self, address: str) -> None:
        self.open -= 1
        self.of_address -= Counter((address,))


class BoundedConnection(HttpToolsProtocol):
    limits: Connections

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._address: str | None = None
        self._raw: asyncio.Transport | None = None
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._refusal = "invalid_http"

    def admit(self, raw: asyncio.Transport) -> bool:
        """False if it is one too many, which is closed then. Under TLS this is before the handshake."""
        peer = raw.get_extra_info("peername")
        address = str(peer[0]) if isinstance(peer, tuple) else ""
        if not self.limits.admit(address):
            raw.abort()
            return False
        self._address, self._raw = address, raw
        self.limits.add(address)
        self.limits.silent[self] = None
        return True

    def leave(self) -> None:
        """It counts no longer."""
        self._head_is_whole()
        if self._raw is not None and self._address is not None:
            self._raw = None
            self.limits.remove(self._address)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if self._address is None and not self.admit(transport):
            self.transport = transport
            return
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._address is None:
            return
        self.leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._address is None or self.transport.is_closing():
            return
        if self._head_timer is None and self.cycle is not None and self.cycle.response_complete:
            self._await_head()  # the next request of a kept connection
        if self._head_timer is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_timer is not None and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse("head_too_large")

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._check(len(self.url) <= MAX_HEAD_BYTES)

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        size = sum(len(name) + len(value) for name, value in self.headers)
        self._check(len(self.headers) <= MAX_HEADERS and size <= MAX_HEAD_BYTES)

    def on_headers_complete(self) -> None:
        self._head_is_whole()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """uvicorn calls this for anything it cannot parse; the answer has the API's error shape."""
        self._refuse(self._refusal)

    def drop(self) -> None:
        self._head_is_whole()
        if self._raw is not None:
            self._raw.abort()

    def _check(self, fits: bool) -> None:
        if not fits:
            self._refusal = "head_too_large"
            raise ValueError(self._refusal)  # the parser stops, and `send_400_response` is called

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(HEAD_S, self._refuse, "head_timeout")
        self.limits.silent[self] = None

    def _head_is_whole(self) -> None:
        self.limits.silent.pop(self, None)
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, code: str) -> None:
        said_nothing = not self._head_bytes
        self._head_is_whole()
        if self.transport.is_closing():
            return
        if code == "head_timeout" and said_nothing:
            self.transport.abort()  # an idle connection needs no answer
            return
        status, phrase, message = _REASONS[code]
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
        body = msgspec.json.encode({"error": error})
        head = f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()


def bounded(most: int, most_of_one: int) -> type[BoundedConnection]:
    return type("Connection", (BoundedConnection,), {"limits": Connections(most, most_of_one)})


class TlsConnection(SSLProtocol):
    """Below a BoundedConnection. uvicorn would have asyncio make it, which bounds no connection before its end."""

    max_size = 1 << 15  # of the buffer that each connection keeps for what it reads

    def __init__(self, connection: BoundedConnection, context: ssl.SSLContext) -> None:
        super().__init__(
            connection.loop,
            connection,
            context,
            None,  # type: ignore[arg-type]  # nothing waits for it
            server_side=True,
            ssl_handshake_timeout=HEAD_S,  # type: ignore[arg-type]  # may have a fraction
            ssl_shutdown_timeout=FAREWELL_S,
        )
        self._connection = connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if self._connection.admit(transport):
            super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connection.leave()
        super().connection_lost(exc)


def under_tls(protocol: type[BoundedConnection], tls: ServerTls) -> Callable[..., asyncio.BaseProtocol]:
    def connect(**named: Any) -> TlsConnection:
        assert tls.context is not None
        return TlsConnection(protocol(**named), tls.context)

    return connect


_GRACE_S = 1
_BACKLOG = 2048


async def serve(
    app: ASGIApp, settings: GatewaySettings, on_ready: Callable[[str], None], tls: ServerTls | None = None
) -> None:
    """`on_ready` gets the URL once it listens. Running answers get time to end."""
    if (settings.tls_cert is None) != (tls is None):
        raise SetupError("A certificate is named, and there is none to show; or the other way round.")
    protocol = bounded(settings.max_connections, settings.max_connections_of_one)
    listener = bind(settings)
    listener.listen(_BACKLOG)
    # No access log: paths and addresses are user data. An answer cut off at the end is not worth an error either.
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    config = uvicorn.Config(
        app,
        http=under_tls(protocol, tls) if tls else protocol,  # type: ignore[arg-type]
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
    return f"{'https' if settings.tls_cert else 'http'}://{host}:{listener.getsockname()[1]}"
