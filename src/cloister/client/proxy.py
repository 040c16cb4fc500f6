"""A local OpenAI endpoint for programs in any language: what they ask in the clear on this machine leaves it sealed
(`Proxy`), or otherwise protected (`client/obfuscating_proxy.py`).

Runs on the loopback address only, and sends nothing before the node is verified. Every other user and program of this
machine can reach it too: API keys are the programs' own and pass through, sealed. It keeps and logs nothing.
"""

from __future__ import annotations

import asyncio
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable

from cloister.client.downstream import Downstream, Request
from cloister.client.message import Refusal, SealedMessage, seal_message
from cloister.client.resending import DENIED, check_denial
from cloister.client.upstream import NeverAnswered, Upstream, UpstreamPool
from cloister.client.verification import Verification, VerifiedNode
from cloister.client.winnow import IndexSecrets
from cloister.errors import CloisterError, InvalidRequest, ServiceUnavailable, SetupError

HOST = "127.0.0.1"
_GRACE_S = 5.0
_RETRY_AFTER_S = 2


class LocalEndpoint(ABC):
    """Answers local programs; how, `_exchange` knows."""

    def __init__(self) -> None:
        self._downstream: set[Downstream] = set()
        self._stop = asyncio.Event()

    @abstractmethod
    async def _exchange(self, request: Request, downstream: Downstream) -> Refusal | None:
        """Answer the request, or say why not."""

    @abstractmethod
    async def _close(self) -> None:
        """Let go of connections that answers came from."""

    async def serve(self, port: int, on_ready: Callable[[str], None]) -> None:
        """Serve until `stop`; `on_ready` gets the URL once it listens. Answers under way get a moment to end."""
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(self._connected, HOST, port)
        except OSError as wrong:
            raise SetupError(
                f"Cannot listen on {HOST} port {port}: {wrong.strerror}.",
                hint="Choose another with --port (0 takes any free one).",
            ) from None
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
            refusal = await self._exchange(request, downstream)
        except InvalidRequest as wrong:
            refusal = Refusal.of(wrong)
        except ServiceUnavailable as gone:
            refusal = Refusal(503, str(gone), gone.code, _RETRY_AFTER_S)
        except CloisterError as error:
            refusal = Refusal.of(error, 502)
        if refusal is None:
            return
        if downstream.begun:
            downstream.abort()
        else:
            downstream.refuse(refusal)

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
        await self._close()


class Proxy(LocalEndpoint):
    """Answers local programs with what a verified node answers."""

    def __init__(self, node: VerifiedNode) -> None:
        super().__init__()
        self._node = node
        self._pool = UpstreamPool(node.address)
        self._secrets = IndexSecrets()

    async def _exchange(self, request: Request, downstream: Downstream) -> Refusal | None:
        verification = await self._node.verified_beside()
        message = self._sealed(request, verification)
        try:
            return await self._attempt(request, downstream, verification, message)
        except DENIED as said:
            now = await self._node.verified_beside(after=verification)
            check_denial(said, message, verification, now)
            return await self._attempt(request, downstream, now, self._sealed(request, now))

    def _sealed(self, request: Request, verification: Verification) -> SealedMessage:
        key, now = verification.channel_key, verification.node_ms()
        return seal_message(key, request.method, request.path, request.headers, request.body, now, self._secrets)

    async def _attempt(
        self, request: Request, downstream: Downstream, verification: Verification, message: SealedMessage
    ) -> Refusal | None:
        connection = await self._pool.take()
        kept = connection.used
        try:
            return await self._send(message, downstream, connection)
        except NeverAnswered:
            if not kept:
                raise
            # A kept connection that the node had closed meanwhile. Sealed anew: no message is ever sent twice.
            return await self._send(self._sealed(request, verification), downstream, await self._pool.open())

    async def _send(self, message: SealedMessage, downstream: Downstream, connection: Upstream) -> Refusal | None:
        downstream.upstream = connection
        try:
            return await connection.exchange(message, downstream)
        finally:
            downstream.upstream = None
            self._pool.give_back(connection)

    async def _close(self) -> None:
        self._pool.close()


def run_proxy(make: Callable[[], LocalEndpoint], port: int, on_ready: Callable[[str], None]) -> None:
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
