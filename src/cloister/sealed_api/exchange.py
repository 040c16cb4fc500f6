"""Sealed requests, opened for the ASGI application; answers sealed, WINDOW_BYTES ahead at most. Keys are wiped."""

import asyncio
import time
from collections.abc import Callable
from urllib.parse import unquote

import msgspec
from starlette.types import ASGIApp, Message, Scope

from cloister.channel.envelope import InnerHead, InnerRequest
from cloister.channel.sealing import open_request
from cloister.channel.stream import StreamSealer
from cloister.errors import CloisterError, ServiceUnavailable
from cloister.gateway.errors import log_unexpected
from cloister.gateway.schema import SCOPE, SealedRequest
from cloister.messages.controller_frontend import MAX_PART_BYTES, BytesTaken, CancelSealed, SealedPart
from cloister.messages.controller_sealed_api import Serve
from cloister.messages.lifecycle import failed

WINDOW_BYTES = 1 << 18
MAX_TOGETHER_BYTES = 1 << 22

# Headers of a connection, which there is none of; the length is set again below.
_OUTER_HEADERS = frozenset(("host", "connection", "content-length", "transfer-encoding", "expect", "upgrade", "te"))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Exchange:
    """One sealed request. It calls `wants_out` when there is something to `flush`."""

    def __init__(self, serve: Serve, wants_out: Callable[["Exchange"], object]) -> None:
        self.number, self._prompts, self._enc = serve.request_id, serve.prompts, serve.enc
        self._request_key, self._response_key = serve.request_key, serve.response_key
        self._request: bytes | None = serve.request
        self._wants_out = wants_out
        self._sealer: StreamSealer | None = None
        self._head: bytes | None = None
        self._data: list[bytes] = []
        self._ahead = 0
        self._room, self._gone = asyncio.Event(), asyncio.Event()
        self.ended = False

    @property
    def begun(self) -> bool:
        """Whether a part of the answer is sent: then an error can only cut it short."""
        return self._sealer is not None

    async def run(self, app: ASGIApp) -> None:
        """Let the application answer. Raises if the request cannot be opened or the answer has no end."""
        inner = self._open()
        body: bytes | None = inner.body
        scope = self._scope(inner)
        del inner

        async def receive() -> Message:
            nonlocal body
            if body is not None:
                given, body = body, None
                return {"type": "http.request", "body": given, "more_body": False}
            await self._gone.wait()
            return {"type": "http.disconnect"}

        await app(scope, receive, self._send)
        if not self.ended and not self._gone.is_set():
            raise ServiceUnavailable("The answer broke off.", hint="Send the request again.")

    def taken(self, count: int) -> None:
        self._ahead -= count
        if self._ahead <= WINDOW_BYTES:
            self._room.set()

    def leave(self) -> None:
        self._gone.set()
        self._room.set()
        self.erase()

    def flush(self) -> bytes:
        pieces: list[bytes] = []
        if self._gone.is_set():
            return b""
        if self._head is not None:
            self._sealer = StreamSealer(self._response_key, self._enc)
            pieces.append(self._sealer.head(self._head))
            self._head = None
        if self._sealer is not None:
            pieces.append(self._sealer.data(*self._data) if self._data else b"")
            self._data.clear()
            if self.ended:
                pieces.append(self._sealer.end())
        sealed = b"".join(pieces)
        self._ahead += len(sealed)
        return sealed

    def erase(self) -> None:
        for key in (self._request_key, self._response_key):
            key[:] = bytes(len(key))
        self._request, self._head = None, None
        self._data.clear()

    def _open(self) -> InnerRequest:
        request, self._request = self._request, None
        assert request is not None
        try:
            inner = InnerRequest.decode(open_request(self._request_key, self._enc, request))
            inner.validity.check(now_ms())
            return inner
        finally:
            self._request_key[:] = bytes(len(self._request_key))

    def _scope(self, inner: InnerRequest) -> Scope:
        path, _, query = inner.path.partition("?")
        given = [(name.lower(), value) for name, value in inner.headers]
        headers = [(name.encode("ascii"), value.encode("utf-8")) for name, value in given if name not in _OUTER_HEADERS]
        if inner.body or inner.method in ("POST", "PUT", "PATCH"):
            headers.append((b"content-length", str(len(inner.body)).encode()))
        return {
            **{"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1"},
            **{"scheme": "http", "root_path": "", "client": None, "server": None},
            **{"method": inner.method, "path": unquote(path), "raw_path": path.encode("ascii")},
            **{"query_string": query.encode("ascii"), "headers": headers},
            SCOPE: SealedRequest(self.number, self._prompts),
        }

    async def _send(self, message: Message) -> None:
        if self._gone.is_set() or self.ended:
            return
        if message["type"] == "http.response.start":
            given = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message.get("headers", ())]
            kept = tuple(pair for pair in given if pair[0].lower() not in ("connection", "transfer-encoding"))
            self._head = InnerHead(message["status"], kept).encode()
            return  # it goes out with the first data
        if message["type"] != "http.response.body":
            return
        if data := message.get("body", b""):
            self._data.append(data)
        self.ended = not message.get("more_body", False)
        self._wants_out(self)
        while not self.ended and self._ahead > WINDOW_BYTES and not self._gone.is_set():
            self._room.clear()
            await self._room.wait()


class Exchanges:
    """All sealed requests under way. `send` takes messages that go out in one frame."""

    def __init__(self, app: ASGIApp, send: Callable[..., None]) -> None:
        self._app = app
        self._send = send
        self._exchanges: dict[int, Exchange] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._eager: dict[int, Exchange] = {}

    def handle(self, message: Serve | BytesTaken | CancelSealed) -> None:
        number = message.request_id
        if isinstance(message, Serve):
            self._exchanges[number] = exchange = Exchange(message, self._wants_out)
            self._tasks[number] = asyncio.create_task(self._answer(exchange))
        elif number in self._exchanges:
            under_way = self._exchanges[number]
            under_way.taken(message.bytes) if isinstance(message, BytesTaken) else under_way.leave()

    async def _answer(self, exchange: Exchange) -> None:
        try:
            await exchange.run(self._app)
        except Exception as error:
            if not isinstance(error, CloisterError):
                log_unexpected(error)
                error = CloisterError("The server met an unexpected error.")
            self._flush()
            self._send(failed(exchange.number, error))
            exchange.erase()
        finally:
            self._exchanges.pop(exchange.number, None)
            self._tasks.pop(exchange.number, None)

    def _wants_out(self, exchange: Exchange) -> None:
        self._eager[exchange.number] = exchange
        if len(self._eager) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        eager, self._eager = self._eager, {}
        together: list[msgspec.Struct] = []
        size = 0
        for exchange in eager.values():
            sealed = exchange.flush()
            for start in range(0, len(sealed), MAX_PART_BYTES):
                piece = sealed[start : start + MAX_PART_BYTES]
                whole = exchange.ended and start + MAX_PART_BYTES >= len(sealed)
                together.append(SealedPart(exchange.number, piece, whole))
                size += len(piece)
                if size > MAX_TOGETHER_BYTES:
                    self._send(*together)
                    together, size = [], 0
        if together:
            self._send(*together)
