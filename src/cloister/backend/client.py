"""A frontend's end of the socket to the controller: carries requests there and their tokens back.

When the controller is gone, the frontend ends too. What a particular frontend hears beside tokens is its own client's
affair.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar, Self

import msgspec

from cloister.backend.base import Backend, OpenJob, VaultJob
from cloister.backend.stream import Event, Mailbox, TokenStream
from cloister.errors import ProtocolError, ServiceUnavailable
from cloister.messages.frames import FrameReader, encode_frame
from cloister.messages.frontend import Ask, AskSealed, EndSession, Serving, StartFrontend, ToGateway
from cloister.messages.generation import (
    VERSION,
    Accepted,
    AskStats,
    Cancel,
    Failed,
    SamplingParams,
    Stats,
    Submit,
    Tokens,
    label_spans,
)
from cloister.messages.lifecycle import raised
from cloister.messages.prompts import SealedPrompt
from cloister.messages.service import AskView, View

RECEIVE_BYTES = 1 << 20


class ControllerClient(Backend):
    """A Backend over a socket. `connect`, then `started` and `serving` are what the controller says first."""

    hears: ClassVar[object] = ToGateway
    beat_s: ClassVar[float] = 0.0

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        self.started: asyncio.Future[StartFrontend] = loop.create_future()
        self.serving: asyncio.Future[Serving] = loop.create_future()
        self._writer = writer
        self._ids = itertools.count(1)
        self._open: dict[int, Mailbox] = {}
        self._accepting: dict[int, asyncio.Future[int]] = {}
        self._stats: list[asyncio.Future[Stats]] = []
        self._views: defaultdict[int, list[asyncio.Future[View]]] = defaultdict(list)
        self._gone: Callable[[], None] = lambda: None
        self._up = True
        self._reading = asyncio.create_task(self._read(reader))

    @classmethod
    async def connect(cls, controller: socket.socket) -> Self:
        """The client over a socket of our own."""
        return cls(*await asyncio.open_connection(sock=controller))

    def when_gone(self, call: Callable[[], None]) -> None:
        """Whom to tell that the controller hung up."""
        self._gone = call

    @property
    def ready(self) -> Serving:
        if not self.serving.done():
            raise ServiceUnavailable("The service is not up yet.")
        return self.serving.result()

    def send(self, *messages: msgspec.Struct) -> None:
        """Say something to the controller, in one frame."""
        if not self._up:
            raise ServiceUnavailable("The server is shutting down.")
        self._writer.write(encode_frame(messages))

    async def generate(self, tenant: str, job: OpenJob | VaultJob, params: SamplingParams) -> TokenStream:
        request_id = next(self._ids)
        if isinstance(job, OpenJob):
            self.send(Submit(request_id, tenant, job.prompt, params, label_spans(len(job.prompt), public=job.public)))
        else:
            self.send(_asking(request_id, tenant, job, params))
        events = Mailbox(self.beat_s)
        accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._open[request_id], self._accepting[request_id] = events, accepted
        try:
            prompt_tokens = await accepted
        except BaseException:
            self._abandon(request_id)
            raise
        if isinstance(job, OpenJob):
            prompt_tokens = len(job.prompt)
        return TokenStream(request_id, prompt_tokens, events, lambda: self._abandon(request_id))

    async def stats(self) -> Stats:
        answer: asyncio.Future[Stats] = asyncio.get_running_loop().create_future()
        self.send(AskStats())
        self._stats.append(answer)
        stats = await answer
        if not stats.up:
            raise ServiceUnavailable("The service is restarting.", hint="Try again in a few seconds.")
        return stats

    async def view(self, request_id: int) -> View:
        answer: asyncio.Future[View] = asyncio.get_running_loop().create_future()
        self.send(AskView(request_id))
        self._views[request_id].append(answer)
        return await answer

    async def end_session(self, tenant: str, session: str, group: str = "") -> None:
        self.send(EndSession(tenant, session, group))

    async def close(self) -> None:
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading
        self._hang_up()

    def _abandon(self, request_id: int) -> None:
        self._accepting.pop(request_id, None)
        if self._open.pop(request_id, None) is not None:
            with suppress(ServiceUnavailable):
                self.send(Cancel(request_id))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        frames: FrameReader[msgspec.Struct] = FrameReader(self.hears)
        try:
            while data := await reader.read(RECEIVE_BYTES):
                for message in frames.feed(data):
                    self._dispatch(message)
        except (ProtocolError, OSError):
            pass  # a controller that cannot be understood is gone
        self._hang_up()
        self._gone()

    def _dispatch(self, message: msgspec.Struct) -> None:
        match message:
            case Tokens(request_id=request_id):
                self._deliver(request_id, message, ended=message.finish is not None)
            case Failed(request_id=request_id):
                accepting = self._accepting.pop(request_id, None)
                if accepting and not accepting.done():
                    self._open.pop(request_id, None)
                    accepting.set_exception(raised(message))
                else:
                    self._deliver(request_id, message, ended=True)
            case Accepted(request_id=request_id):
                accepting = self._accepting.pop(request_id, None)
                if accepting and not accepting.done():
                    accepting.set_result(message.prompt_tokens)
            case Stats() if self._stats:
                _resolve(self._stats.pop(0), message)
            case View(request_id=request_id) if self._views[request_id]:
                _resolve(self._views[request_id].pop(0), message)
                if not self._views[request_id]:
                    del self._views[request_id]
            case StartFrontend(version=version) if version == VERSION and not self.started.done():
                self.started.set_result(message)
            case Serving(version=version) if version == VERSION and not self.serving.done():
                self.serving.set_result(message)
            case _:
                raise ProtocolError("The controller sent a message out of turn.")

    def _deliver(self, request_id: int, event: Event, *, ended: bool) -> None:
        events = self._open.pop(request_id, None) if ended else self._open.get(request_id)
        if events is not None:
            events.put(event)

    def _hang_up(self) -> None:
        self._up = False
        self._writer.close()
        reason = ServiceUnavailable("The server is shutting down.")
        views = [future for futures in self._views.values() for future in futures]
        first: list[asyncio.Future[Any]] = [self.started, self.serving]
        futures: list[asyncio.Future[Any]] = [*self._accepting.values(), *self._stats, *views, *first]
        for future in futures:
            if not future.done():
                future.set_exception(reason)
                future.exception()  # nobody may be waiting
        for events in self._open.values():
            events.put(reason)
        for waiting in (self._open, self._accepting, self._stats, self._views):
            waiting.clear()


def _asking(request_id: int, tenant: str, job: VaultJob, params: SamplingParams) -> Ask | AskSealed:
    if isinstance(job.prompt, SealedPrompt):
        nothing = Ask(request_id, tenant, job.level, job.session, job.keep, b"", params, job.group)
        return AskSealed(nothing, job.prompt)
    return Ask(request_id, tenant, job.level, job.session, job.keep, job.prompt, params, job.group)


def _resolve(future: asyncio.Future[Any], value: object) -> None:
    if not future.done():
        future.set_result(value)
