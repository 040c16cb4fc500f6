"""A local OpenAI endpoint, open to every program of this machine; requests leave sealed, obfuscated, or both. Secrets
are kept by API key: no caller learns by asking whether a word is another's secret."""

import asyncio
import hashlib
import hmac
import json
import secrets
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import httpx2

from cloister.addresses import HttpAddress
from cloister.channel.envelope import InnerHead
from cloister.client.cloud_transport import CloudAccess, CloudTransport
from cloister.client.downstream import Downstream, Request
from cloister.client.message import Refusal, end_to_end
from cloister.client.obfuscating_transport import AsyncObfuscatingTransport, plain_wire
from cloister.client.sealed_transport import AsyncSealedTransport, raw_pieces
from cloister.client.verification import VerifiedNode
from cloister.client.winnow import CREDENTIALS
from cloister.errors import CloisterError, InvalidRequest, ObfuscationRefused, ServiceUnavailable, SetupError
from cloister.obfuscation.requests import Obfuscation

MOST_CALLERS = 256


@dataclass
class _Caller:
    obfuscation: Obfuscation
    asking: int = 0


class Callers:
    """`like` has the settings of the obfuscation; its memory is not used."""

    def __init__(self, like: Obfuscation, most: int = MOST_CALLERS) -> None:
        self._like, self._most = like, most
        self._key = secrets.token_bytes(32)
        self._known: dict[bytes, _Caller] = {}

    @contextmanager
    def asking(self, headers: Iterable[tuple[str, str]]) -> Iterator[Obfuscation]:
        """The memory of the caller with these headers. ObfuscationRefused where there is no room for one more."""
        shown = sorted((name.lower(), value) for name, value in headers if name.lower() in CREDENTIALS)
        if not shown:
            yield self._like.another()
            return
        # Keys themselves are not kept.
        caller = self._caller(json.dumps(shown).encode())
        caller.asking += 1
        try:
            yield caller.obfuscation
        finally:
            caller.asking -= 1

    def _caller(self, shown: bytes) -> _Caller:
        name = hmac.digest(self._key, shown, hashlib.sha256)
        if name not in self._known:
            if len(self._known) >= self._most:
                needed = ((each, one) for each, one in self._known.items() if one.asking or one.obfuscation.remembers)
                self._known = dict(needed)
            if len(self._known) >= self._most:
                message = f"This proxy remembers the secrets of {self._most} API keys and may forget none of them."
                raise ObfuscationRefused(message, hint="Use one of those keys, or start the proxy again.")
            self._known[name] = _Caller(self._like.another(shown))
        return self._known[name]


class PerCallerTransport(AsyncObfuscatingTransport):
    def __init__(self, wire: httpx2.AsyncBaseTransport, like: Obfuscation) -> None:
        super().__init__(wire, like)
        self._callers = Callers(like)

    def _memory(self, request: httpx2.Request) -> AbstractContextManager[Obfuscation]:
        return self._callers.asking(request.headers.multi_items())


HOST = "127.0.0.1"
_GRACE_S = 5.0
_RETRY_AFTER_S = 2
_TIMEOUT = httpx2.Timeout(None, connect=10.0)
_LEFT_OUT = ("host", "content-length", "expect")


class Proxy:
    """With `obfuscation` the server may also be any URL, which gets obfuscated prompts in the clear."""

    def __init__(self, server: VerifiedNode | CloudAccess | str, obfuscation: Obfuscation | None = None) -> None:
        if isinstance(server, str):
            if obfuscation is None:
                raise SetupError("Only obfuscated prompts may go to a server that is not verified.")
            self._address = HttpAddress.parse(server)
        else:
            self._address = server.address
        wire = _wire(server)
        self._transport = wire if obfuscation is None else PerCallerTransport(wire, obfuscation)
        self._downstream: set[Downstream] = set()
        self._stop = asyncio.Event()

    async def serve(self, port: int, on_ready: Callable[[str], None]) -> None:
        """Serve until `stop`; `on_ready` gets the URL once it listens. Answers under way get a moment to end."""
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(self._connected, HOST, port)
        except OSError as wrong:
            hint = "Choose another with --port (0 takes any free one)."
            raise SetupError(f"Cannot listen on {HOST} port {port}: {wrong.strerror}.", hint=hint) from None
        try:
            on_ready(f"http://{HOST}:{server.sockets[0].getsockname()[1]}")
            await self._stop.wait()
        finally:
            server.close()
            await self._drain()

    def stop(self) -> None:
        self._stop.set()

    def _connected(self) -> Downstream:
        connection = Downstream(self._handle, self._downstream.discard)
        self._downstream.add(connection)
        return connection

    async def _handle(self, request: Request, downstream: Downstream) -> None:
        try:
            await self._exchange(request, downstream)
            return
        except InvalidRequest as wrong:
            refusal = Refusal.of(wrong)
        except ServiceUnavailable as gone:
            refusal = Refusal(503, str(gone), gone.code, _RETRY_AFTER_S)
        except CloisterError as error:
            refusal = Refusal.of(error, 502)
        if downstream.begun:
            downstream.abort()
        else:
            downstream.refuse(refusal)

    async def _exchange(self, request: Request, downstream: Downstream) -> None:
        try:
            answer = await self._transport.handle_async_request(self._outer(request))
            downstream.begin(InnerHead(answer.status_code, tuple(answer.headers.multi_items())))
            try:
                async for piece in raw_pieces(answer):
                    downstream.opened(piece, ended=False)
                    await downstream.drain()
            finally:
                await answer.aclose()
        except httpx2.RequestError as wrong:
            raise ServiceUnavailable(f"No proper answer came from {self._address} ({type(wrong).__name__}).") from None
        downstream.opened(b"", ended=True)

    def _outer(self, request: Request) -> httpx2.Request:
        pairs = [(name, value) for name, value in end_to_end(request.headers) if name not in _LEFT_OUT]
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs]
        try:
            if not request.path.startswith("/"):
                raise httpx2.InvalidURL("another server's")
            url, timeout = self._address.url(request.path), {"timeout": _TIMEOUT.as_dict()}
            return httpx2.Request(request.method, url, headers=headers, content=request.body, extensions=timeout)
        except httpx2.InvalidURL:
            raise InvalidRequest("The request's path is not a path of this server.") from None

    async def _drain(self) -> None:
        for connection in tuple(self._downstream):
            connection.close_when_idle()
        answering = [connection.task for connection in self._downstream if connection.task]
        if answering:
            await asyncio.wait(answering, timeout=_GRACE_S)
        for connection in tuple(self._downstream):
            connection.abort()
        if answering:
            await asyncio.wait(answering)
        await self._transport.aclose()


def _wire(server: VerifiedNode | CloudAccess | str) -> httpx2.AsyncBaseTransport:
    if isinstance(server, str):
        return plain_wire(server)
    return CloudTransport(server) if isinstance(server, CloudAccess) else AsyncSealedTransport(server)


def run_proxy(make: Callable[[], Proxy], port: int, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM. `make` is called where the event loop runs."""
    import uvloop

    async def serve() -> None:
        proxy = make()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, proxy.stop)
        await proxy.serve(port, on_ready)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())
