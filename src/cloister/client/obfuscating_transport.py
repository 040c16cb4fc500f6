"""httpx2 transports that send λ+1 requests for one (§5). No sign outside of which is real: heads, words, ends and
failures leave when all have come, shared headers alone; all are read to their end."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import httpx2

from cloister.addresses import HttpAddress
from cloister.client.message import Refusal
from cloister.client.sealed_transport import refused
from cloister.client.verification import tls_to
from cloister.errors import InvalidRequest
from cloister.obfuscation.index import Positions
from cloister.obfuscation.requests import Obfuscated, Obfuscation

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LINE = re.compile(rb"\r\n|\n|\r")
_DONE = b"[DONE]"


class MalformedStream(Exception):
    """What came is no answer of OpenAI's API."""


class EventStream:
    """From an event with a finish reason on all goes into `rest`, handed over when all streams have ended."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.rest = bytearray()
        self.error: bytes | None = None
        self._ending = False
        self._unread = bytearray()

    def feed(self, data: bytes) -> int:
        before, searched = len(self.pieces), max(0, len(self._unread) - 3)
        self._unread += data
        at = 0
        for end in _END.finditer(self._unread, searched):
            self._event(bytes(self._unread[at : end.end()]))
            at = end.end()
        del self._unread[:at]
        return len(self.pieces) - before

    def finish(self) -> None:
        self.rest += self._unread
        self._unread.clear()

    @property
    def body(self) -> bytes:
        return b"".join((*self.pieces, self.rest))

    def _event(self, event: bytes) -> None:
        content = _data(event)
        error, choices = (None, []) if content in (b"", _DONE) else _read(content)
        if error:
            self.error = self.error or event
        self._ending |= content == _DONE or any(choice.get("finish_reason") for choice in choices)
        self.rest += event
        if any(map(_says, choices)):
            self.pieces.append(b"" if self._ending else bytes(self.rest))
            if not self._ending:
                self.rest.clear()


def _data(event: bytes) -> bytes:
    lines = [line[5:] for line in _LINE.split(event) if line.startswith(b"data:")]
    return b"\n".join(lines).strip()


def _read(content: bytes) -> tuple[Any, list[dict[str, Any]]]:
    """An event's error and its choices."""
    try:
        said = json.loads(content)
    except (ValueError, RecursionError):
        raise MalformedStream("an event is not JSON") from None
    if not isinstance(said, dict):
        raise MalformedStream("an event is not a JSON object")
    choices = said.get("choices") or []
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise MalformedStream("an event has choices that are none")
    return said.get("error"), choices


def _says(choice: dict[str, Any]) -> bool:
    """Whether there is more in it than a role: words, or a part of a tool call."""
    delta = choice.get("delta")
    words = (value for name, value in delta.items() if name != "role") if isinstance(delta, dict) else ()
    return bool(choice.get("text")) or any(words)


def spoken(body: bytes, streamed: bool) -> list[str]:
    """The text of every choice of an answer, in their order; empty where an answer is no plain text."""
    try:
        events = [_data(event) for event in _END.split(body)] if streamed else [body]
        said: dict[int, str] = {}
        for event in events:
            if streamed and event in (b"", _DONE):
                continue
            for choice in json.loads(event).get("choices", ()):
                part = choice.get("delta" if streamed else "message") or {}
                words = part.get("content") or choice.get("text") or ""
                said[choice["index"]] = said.get(choice["index"], "") + words
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    return [said[index] for index in sorted(said)]


MAX_ANSWERS_BYTES = 256 * 2**20  # Of all λ+1 together.
COMMENT = b":\n\n"
_STREAM = "text/event-stream"
# The body is handed over decoded, and its length is not known before.
_NOT_HANDED = frozenset(("content-length", "transfer-encoding", "connection", "content-encoding"))


class _Answer:
    def __init__(self, number: int, exchange: "Exchange") -> None:
        self._number, self._exchange = number, exchange
        self.head: asyncio.Future[httpx2.Response] = asyncio.get_running_loop().create_future()
        self.whole = bytearray()
        self.events: EventStream | None = None
        self.failure: Exception | None = None

    @property
    def refused(self) -> bool:
        return not self.head.result().is_success

    @property
    def kind(self) -> tuple[int, str]:
        """Status and media type, which must be the same in all answers."""
        head = self.head.result()
        return head.status_code, head.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def streamed(self) -> bool:
        return self.kind[1] == _STREAM and not self.refused

    async def take(self, wire: httpx2.AsyncBaseTransport, request: httpx2.Request) -> None:
        """Send the request and read its answer to the end; a failure is kept, not raised."""
        try:
            response = await wire.handle_async_request(request)
            self.head.set_result(response)
            self.events = EventStream() if self.streamed else None
            try:
                async for piece in response.aiter_bytes():
                    self._grow(piece)
            finally:
                await response.aclose()
            if self.events is not None:
                self.events.finish()
            self._exchange.positions.end(self._number)
        except Exception as failure:
            malformed = isinstance(failure, MalformedStream)
            self.failure = httpx2.RemoteProtocolError(f"The answer is malformed: {failure}.") if malformed else failure
            if not self.head.done():
                self.head.set_exception(failure)
                self.head.exception()  # marks it as retrieved: it may have no other reader
        finally:
            self._exchange.moved.set()

    def texts(self) -> list[str]:
        return spoken(bytes(self.whole) if self.events is None else self.events.body, self.events is not None)

    def _grow(self, piece: bytes) -> None:
        self._exchange.count(len(piece))
        if self.events is None:
            self.whole += piece
        elif positions := self.events.feed(piece):
            self._exchange.positions.advance(self._number, positions)
            self._exchange.moved.set()
        elif self.events.error is not None:
            self._exchange.moved.set()


class Exchange:
    def __init__(self, sent: Obfuscated, obfuscation: Obfuscation) -> None:
        self._sent, self._obfuscation = sent, obfuscation
        self.positions = Positions(len(sent.bodies))
        self.moved, self._ended = asyncio.Event(), asyncio.Event()
        self._answers = [_Answer(number, self) for number in range(len(sent.bodies))]
        self._bytes = 0

    async def run(self, wire: httpx2.AsyncBaseTransport, request: httpx2.Request) -> None:
        headers = [(name, value) for name, value in request.headers.multi_items() if name.lower() not in _NOT_HANDED]
        more: dict[str, Any] = {"headers": headers, "extensions": dict(request.extensions)}
        requests = [httpx2.Request(request.method, request.url, content=body, **more) for body in self._sent.bodies]
        pairs = zip(self._answers, requests, strict=True)
        try:
            await asyncio.gather(*(answer.take(wire, each) for answer, each in pairs))
            if self._failure is None:
                self._obfuscation.remember(self._sent, [answer.texts() for answer in self._answers])
        finally:
            self._ended.set()
            self.moved.set()

    async def response(self, request: httpx2.Request) -> httpx2.Response:
        await asyncio.wait([answer.head for answer in self._answers], return_when=asyncio.FIRST_EXCEPTION)
        self._raise_failure()
        if all(answer.streamed for answer in self._answers):
            return self._response(request, _Handed(self))
        await self._ended.wait()
        self._raise_failure()
        if refused := [answer for answer in self._answers if answer.refused]:
            # The first in the order of sending: which one was refused does not matter.
            head = refused[0].head.result()
            return _made(head, head.headers.multi_items(), httpx2.ByteStream(bytes(refused[0].whole)), request)
        if len({answer.kind for answer in self._answers}) > 1:
            raise httpx2.RemoteProtocolError("The answers have different statuses or media types.")
        return self._response(request, httpx2.ByteStream(bytes(self._real.whole)))

    def count(self, size: int) -> None:
        self._bytes += size
        if self._bytes > MAX_ANSWERS_BYTES:
            raise httpx2.ReadError("the answers are too long")

    async def handed(self) -> AsyncIterator[bytes]:
        """The real stream, position by position. A reader is woken as often whichever stream is real."""
        real, given = self._real.events, 0
        assert real is not None
        while not self._ended.is_set():
            self.moved.clear()
            self._raise_failure()
            if error := self._error:
                yield error
                return
            readable = self.positions.readable
            if given < readable < float("inf"):
                yield b"".join(real.pieces[given : int(readable)]) or COMMENT
                given = int(readable)
            elif not self._ended.is_set():
                await self.moved.wait()
        self._raise_failure()
        yield self._error or b"".join((*real.pieces[given:], real.rest))

    @property
    def _real(self) -> _Answer:
        return self._sent.order.winnow(self._answers)

    @property
    def _failure(self) -> Exception | None:
        """The first in the order of sending: which one failed does not matter."""
        return next((answer.failure for answer in self._answers if answer.failure is not None), None)

    @property
    def _error(self) -> bytes | None:
        errors = (answer.events.error for answer in self._answers if answer.events is not None)
        return next((error for error in errors if error is not None), None)

    def _raise_failure(self) -> None:
        if (failure := self._failure) is not None:
            raise failure

    def _response(self, request: httpx2.Request, body: httpx2.AsyncByteStream) -> httpx2.Response:
        first, *others = [answer.head.result().headers.multi_items() for answer in self._answers]
        common = [header for header in first if all(header in other for other in others)]
        # The media type is the same in all; parameters such as a charset may differ.
        common = [(name, value) for name, value in common if name.lower() != "content-type"]
        common.append(("content-type", self._real.kind[1]))
        return _made(self._real.head.result(), common, body, request)


class _Handed(httpx2.AsyncByteStream):
    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._exchange.handed():
            yield piece


def _made(
    head: httpx2.Response, headers: list[tuple[str, str]], body: httpx2.AsyncByteStream, request: httpx2.Request
) -> httpx2.Response:
    kept = [(name, value) for name, value in headers if name.lower() not in _NOT_HANDED]
    return httpx2.Response(head.status_code, headers=kept, stream=body, request=request)


class AsyncObfuscatingTransport(httpx2.AsyncBaseTransport):
    def __init__(self, wire: httpx2.AsyncBaseTransport, obfuscation: Obfuscation) -> None:
        self._wire, self._obfuscation = wire, obfuscation
        self._under_way: set[asyncio.Task[None]] = set()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """What cannot be obfuscated is refused as a server refuses a malformed request, and nothing is sent."""
        content = await request.aread()
        if request.method != "POST":
            return await self._wire.handle_async_request(request)
        try:
            with self._memory(request) as obfuscation:
                sent = await asyncio.to_thread(obfuscation.obfuscate, request.url.path, content)
        except InvalidRequest as wrong:
            return refused(Refusal.of(wrong), request)
        if sent is None:
            return await self._wire.handle_async_request(request)
        exchange = Exchange(sent, obfuscation)
        task = asyncio.get_running_loop().create_task(exchange.run(self._wire, request))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await exchange.response(request)

    def _memory(self, request: httpx2.Request) -> AbstractContextManager[Obfuscation]:
        """By what this request is obfuscated: all are one user's."""
        return nullcontext(self._obfuscation)

    async def aclose(self) -> None:
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await self._wire.aclose()


def plain_wire(url: str) -> httpx2.AsyncHTTPTransport:
    """To any server in the clear, with as many connections as there are variants."""
    verify = tls_to(HttpAddress.parse(url))
    return httpx2.AsyncHTTPTransport(verify=verify, trust_env=False, limits=httpx2.Limits())
