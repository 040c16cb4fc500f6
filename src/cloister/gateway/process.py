"""The gateway as a process: its socket to the controller, which carries sealed bytes unread, and its HTTP server."""

import asyncio
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from cloister.backend.base import Carrier, SealedAnswer
from cloister.backend.client import Answer, ControllerClient
from cloister.certificate import ServerTls
from cloister.config import GatewaySettings
from cloister.errors import CloisterError, ServiceUnavailable
from cloister.gateway import oblivious, sealed
from cloister.gateway.app import create_app
from cloister.gateway.guard import Guard
from cloister.gateway.oblivious import Oblivious
from cloister.gateway.server import serve as serve_http
from cloister.keys import KeyRing
from cloister.messages.controller_frontend import BytesTaken, CancelSealed, SealedPart
from cloister.messages.controller_gateway import (
    AskEvidence,
    AskKeyConfigurations,
    BeginDrain,
    Drained,
    Evidence,
    ExchangeOpened,
    KeyConfigurations,
    Listening,
    OpenExchange,
    Sealed,
    ShowCertificate,
    ToGateway,
)
from cloister.messages.generation import Failed
from cloister.messages.lifecycle import raised, start_failed
from cloister.models.source import open_folder
from cloister.process.sandbox.confinement import confine_or_refuse
from cloister.prompts.tokenizer import Tokenizer

REPORT_TAKEN_BYTES = 1 << 16
"""Less than the sealed API's window (sealed_api.exchange.WINDOW_BYTES), so that it rarely waits for this report."""


_ASKED = (Evidence, ExchangeOpened, KeyConfigurations)


class GatewayClient(ControllerClient, Carrier):
    receives = ToGateway

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._sealed: dict[int, CarriedAnswer] = {}
        self.tls: ServerTls | None = None
        self.when_to_drain: Callable[[], None] = lambda: self.send(Drained())
        super().__init__(reader, writer)

    async def evidence(self, nonce: bytes, since: int) -> bytes:
        return (await self._ask(Evidence, lambda number: AskEvidence(number, nonce, since))).document

    async def open_exchange(self, header: bytes, *, chunked: bool) -> ExchangeOpened:
        return await self._ask(ExchangeOpened, lambda number: OpenExchange(number, header, chunked))

    async def key_configurations(self) -> bytes:
        return (await self._ask(KeyConfigurations, AskKeyConfigurations)).document

    async def _ask(self, kind: type[Answer], question: Callable[[int], msgspec.Struct]) -> Answer:
        request_id = next(self._ids)
        self.send(question(request_id))
        try:
            return await self._answer(kind, request_id)
        finally:
            self._awaited.pop((kind, request_id), None)

    def carry(self, envelope: bytes) -> "CarriedAnswer":
        request_id = next(self._ids)
        self.send(Sealed(request_id, envelope))
        answer = self._sealed[request_id] = CarriedAnswer(request_id, self)
        return answer

    def forget(self, request_id: int) -> None:
        self._sealed.pop(request_id, None)

    def _dispatch(self, message: msgspec.Struct) -> None:
        match message:
            case SealedPart():
                if answer := self._sealed.get(message.request_id):
                    answer.put(message)
            case ShowCertificate():
                self.tls = self.tls or ServerTls()
                self.tls.show(message.certificate)
            case BeginDrain():
                self.when_to_drain()
            case Evidence() | ExchangeOpened() | KeyConfigurations():
                self._answered(type(message), message.request_id, message)
            case Failed() if answer := self._sealed.get(message.request_id):
                answer.put(raised(message))
            case Failed() if any(self._answered(kind, message.request_id, raised(message)) for kind in _ASKED):
                pass
            case _:
                super()._dispatch(message)

    def _hang_up(self) -> None:
        super()._hang_up()
        for answer in list(self._sealed.values()):
            answer.put(ServiceUnavailable("The server is shutting down."))


class CarriedAnswer(SealedAnswer):
    def __init__(self, request_id: int, client: GatewayClient) -> None:
        self._request_id, self._client = request_id, client
        self._parts: list[SealedPart] = []
        self._failed: CloisterError | None = None
        self._news = asyncio.Event()
        self._unreported, self._ended = 0, False

    def put(self, part: SealedPart | CloisterError) -> None:
        if isinstance(part, SealedPart):
            self._parts.append(part)
        else:
            self._failed = part
        if not isinstance(part, SealedPart) or part.end:
            self._end()
        self._news.set()

    async def next(self) -> tuple[bytes, bool]:
        await self._news.wait()
        if self._parts:
            parts, self._parts = self._parts, []
            if self._failed is None and not parts[-1].end:
                self._news.clear()
            return b"".join([part.data for part in parts]), parts[-1].end
        raise self._failed or ServiceUnavailable("The answer has ended.")

    def taken(self, count: int) -> None:
        self._unreported += count
        if self._unreported >= REPORT_TAKEN_BYTES and not self._ended:
            with suppress(ServiceUnavailable):
                self._client.send(BytesTaken(self._request_id, self._unreported))
            self._unreported = 0

    def leave(self) -> None:
        if not self._ended:
            self._end()
            with suppress(ServiceUnavailable):
                self._client.send(CancelSealed(self._request_id))
            self.put(ServiceUnavailable("The client has left."))

    def _end(self) -> None:
        self._ended = True
        self._client.forget(self._request_id)


class SealedFirst:
    """A short cut for sealed requests past the router, which would take as long as the answer; the same Guard. What
    oblivious requests hold comes back here."""

    def __init__(self, app: FastAPI) -> None:
        api = app.state.api
        self._app = app
        self._guarded = Guard(
            sealed.answer_sealed, api.metrics, app.state.drain, local_only=api.settings.keys_file is None
        )
        self._oblivious = Oblivious(self.inside, app)
        self._route = next(route for route in sealed.router.routes if getattr(route, "path", None) == sealed.PATH)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] in oblivious.PATHS:
            await self._oblivious(scope, receive, send)
        else:
            await self.inside(scope, receive, send)

    async def inside(self, scope: Scope, receive: Receive, send: Send) -> None:
        """All but the oblivious gateway resource."""
        if scope["type"] == "http" and scope["path"] == sealed.PATH and scope["method"] == "POST":
            scope["app"], scope["route"] = self._app, self._route
            await self._guarded(scope, receive, send)
        else:
            await self._app(scope, receive, send)


async def serve(controller: socket.socket) -> None:
    client = await GatewayClient.connect(controller)
    try:
        start = await client.started
        settings = GatewaySettings.model_validate_json(start.settings)
        tokenizer = Tokenizer(open_folder(Path(start.path), start.name))
        keys = KeyRing(start.keys)
        client.when_keys_change(keys.admit)
        await client.serving
        app = create_app(client, tokenizer, start.name, settings, start.created, client, keys)
        app.openapi()  # made now and kept: after confinement its code could not be read from files
        client.when_to_drain = lambda: app.state.drain.begin(lambda: client.send(Drained()))
        client.when_gone(lambda: signal.raise_signal(signal.SIGTERM))

        def listens(url: str) -> None:
            """Called before the first request is read."""
            confine_or_refuse("gateway", allow_degraded=start.allow_degraded)
            client.send(Listening(url))

        await serve_http(SealedFirst(app), settings, listens, client.tls)
    except ServiceUnavailable:
        pass  # the controller ended during our start
    except Exception as reason:
        client.send(start_failed(reason, "The gateway cannot start"))
    finally:
        await client.close()
