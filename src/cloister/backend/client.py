"""A frontend's end of the socket to the controller. When the controller is gone, the frontend ends too."""

import asyncio
import socket
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain, count
from typing import Any, ClassVar, Self, TypeVar

import msgspec

from cloister.backend.base import Backend, Job, OpenJob
from cloister.backend.stream import Event, Grid, Mailbox, TokenStream
from cloister.errors import CloisterError, ProtocolError, ServiceUnavailable
from cloister.messages import controller_frontend as frontend
from cloister.messages.controller_gateway import ToGateway
from cloister.messages.controller_sealed_api import AskSealed
from cloister.messages.frames import FrameReader, encode_frame
from cloister.messages.generation import Accepted, AskStats, Cancel, Failed, Stats, Tokens
from cloister.messages.lifecycle import Ping, Pong, raised
from cloister.messages.prompts import SealedPrompt
from cloister.messages.types import ExtraAnswer, SamplingParams

RECEIVE_BYTES = 1 << 20
Answer = TypeVar("Answer", bound=msgspec.Struct)


class ControllerClient(Backend):
    """A Backend over a socket. `started` and `serving` are the controller's first two messages."""

    receives: ClassVar[object] = ToGateway
    beat_s: ClassVar[float] = 0.0

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        self.started: asyncio.Future[frontend.StartFrontend] = loop.create_future()
        self.serving: asyncio.Future[frontend.Serving] = loop.create_future()
        self._writer = writer
        self._ids = count(1)
        self._open: dict[int, Mailbox] = {}
        self._awaited: defaultdict[tuple[type[msgspec.Struct], int], deque[asyncio.Future[Any]]] = defaultdict(deque)
        self._gone: Callable[[], None] = lambda: None
        self._admit: Callable[[tuple[frontend.KeyEntry, ...]], None] = lambda keys: None
        self._up = True
        self._reading = asyncio.create_task(self._read(reader))

    @classmethod
    async def connect(cls, controller: socket.socket) -> Self:
        return cls(*await asyncio.open_connection(sock=controller))

    def when_gone(self, call: Callable[[], None]) -> None:
        self._gone = call

    def when_keys_change(self, call: Callable[[tuple[frontend.KeyEntry, ...]], None]) -> None:
        self._admit = call

    @property
    def ready(self) -> frontend.Serving:
        if not self.serving.done():
            raise ServiceUnavailable("The service is not up yet.")
        return self.serving.result()

    def send(self, *messages: msgspec.Struct) -> None:
        if not self._up:
            raise ServiceUnavailable("The server is shutting down.")
        self._writer.write(encode_frame(messages))

    async def generate(self, tenant: str, job: Job, params: SamplingParams) -> TokenStream:
        [stream] = await self.generate_all(tenant, job, [params])
        return stream

    async def generate_all(self, tenant: str, job: Job, params: Sequence[SamplingParams]) -> list[TokenStream]:
        wanted = [(next(self._ids), each) for each in params]
        self.send(_asking(tenant, job, wanted))
        events = {one: Mailbox(self.beat_s, self._grid(job)) for one, _ in wanted}
        self._open |= events
        answers = [self._answer(Accepted, one) for one in events]
        try:
            accepted = [await answer for answer in answers]
        except BaseException:
            for one, answer in zip(events, answers, strict=True):
                self._abandon(one)
                if not answer.cancel() and not answer.cancelled():
                    answer.exception()  # a refusal that is not looked at would be logged, with a traceback
            raise
        return [self._stream(one, job, answer, events[one]) for one, answer in zip(events, accepted, strict=True)]

    def _grid(self, job: Job) -> Grid | None:
        step_ms = self.ready.quantised.get(job.level)
        return None if step_ms is None else Grid(step_ms / 1000, asyncio.get_running_loop().time())

    def _stream(self, request_id: int, job: Job, accepted: Accepted, events: Mailbox) -> TokenStream:
        prompt_tokens = len(job.prompt) if isinstance(job, OpenJob) else accepted.prompt_tokens
        return TokenStream(request_id, prompt_tokens, events, lambda: self._abandon(request_id), accepted.sequences)

    async def stats(self) -> Stats:
        self.send(AskStats())
        stats = await self._answer(Stats)
        if not stats.up:
            raise ServiceUnavailable("The service is restarting.", hint="Try again in a few seconds.")
        return stats

    async def spend(self, token: bytes) -> None:
        request_id = next(self._ids)
        self.send(frontend.SpendToken(request_id, token))
        settled = await self._answer(frontend.TokenSettled, request_id)
        if settled.refused is not None:
            raise raised(settled.refused)

    async def view(self, request_id: int) -> frontend.View:
        self.send(frontend.AskView(request_id))
        return await self._answer(frontend.View, request_id)

    async def end_session(self, tenant: str, session: str, group: str = "", *, private: bool = False) -> None:
        self.send(frontend.EndSession(tenant, session, group, private))

    async def close(self) -> None:
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading
        self._hang_up()

    def _answer(self, kind: type[Answer], request_id: int = 0) -> asyncio.Future[Answer]:
        """What the controller will say. Answers of one kind about one request come in the order of their questions."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._awaited[kind, request_id].append(answer)
        return answer

    def _answered(self, kind: type[msgspec.Struct], request_id: int, answer: msgspec.Struct | CloisterError) -> bool:
        """Give the answer to the first call that waits for one; whether there was a call."""
        futures = self._awaited.pop((kind, request_id), deque())
        if not futures:
            return False
        asked = futures.popleft()
        if futures:
            self._awaited[kind, request_id] = futures
        if not asked.done():  # the call was not cancelled
            asked.set_exception(answer) if isinstance(answer, CloisterError) else asked.set_result(answer)
        return True

    def _abandon(self, request_id: int) -> None:
        self._awaited.pop((Accepted, request_id), None)
        if self._open.pop(request_id, None) is not None:
            with suppress(ServiceUnavailable):
                self.send(Cancel(request_id))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        frames: FrameReader[msgspec.Struct] = FrameReader(self.receives)
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
                if self._answered(Accepted, request_id, raised(message)):
                    self._open.pop(request_id, None)
                else:
                    self._deliver(request_id, message, ended=True)
            case Accepted(request_id=request_id):
                self._answered(Accepted, request_id, message)
            case Stats() | frontend.View() | frontend.TokenSettled() if self._answered(
                type(message), getattr(message, "request_id", 0), message
            ):
                pass
            case frontend.StartFrontend() if not self.started.done():
                self.started.set_result(message)
            case frontend.Serving() if not self.serving.done():
                self.serving.set_result(message)
            case frontend.AdmitKeys(keys=keys):
                self._admit(keys)
            case Ping():
                self.send(Pong())
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
        futures: list[asyncio.Future[Any]] = [self.started, self.serving, *chain.from_iterable(self._awaited.values())]
        for future in futures:
            if not future.done():
                future.set_exception(reason)
                future.exception()  # there may be no call that waits
        for events in self._open.values():
            events.put(reason)
        self._awaited.clear()
        self._open.clear()


def _asking(
    tenant: str, job: Job, wanted: list[tuple[int, SamplingParams]]
) -> frontend.SubmitTokens | frontend.Ask | AskSealed:
    (number, params), *others = wanted
    also = tuple(ExtraAnswer(one, each.seed) for one, each in others)
    if isinstance(job, OpenJob):
        reuse = (job.public, job.salt, job.level)
        return frontend.SubmitTokens(number, tenant, job.prompt, params, *reuse, also, job.text, job.ends)
    prompt = b"" if isinstance(job.prompt, SealedPrompt) else job.prompt
    session = (job.level, job.session, job.keep)
    ask = frontend.Ask(number, tenant, *session, prompt, params, job.group, also, job.salt, job.obfuscation, job.verify)
    return AskSealed(ask, job.prompt) if isinstance(job.prompt, SealedPrompt) else ask
