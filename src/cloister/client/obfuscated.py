"""httpx2 transports that send λ+1 requests for one and hand over the answer to the real one (§5; no server of ours is
needed).

What can be seen from outside does not depend on which is real: all bodies are made before the first is sent, in an
order drawn from a secret; every answer is read to its end as fast as it comes, whether anybody waits for it or not; the
end of the real one is handed over when all have ended; and if one fails, the request fails, whichever it was. So who
delays or cuts one answer learns nothing from what the user does next.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar

import httpx2

from cloister.addresses import HttpAddress
from cloister.client.address import tls_to
from cloister.client.message import Refusal
from cloister.errors import InvalidRequest
from cloister.obfuscation.requests import Obfuscated, Obfuscation

MAX_ANSWER_BYTES = 64 * 2**20
_STREAM = "text/event-stream"
# From here on a reader takes a streamed answer for whole.
_LAST = re.compile(rb'"finish_reason"\s*:\s*"|data:\s*\[DONE\]')
_HOP = frozenset(("content-length", "transfer-encoding", "connection"))

Result = TypeVar("Result")


class _Answer:
    """One of λ+1 answers as it comes in."""

    def __init__(self) -> None:
        self.head: asyncio.Future[httpx2.Response] = asyncio.get_running_loop().create_future()
        self.body = bytearray()
        self.grew = asyncio.Event()
        self.failure: Exception | None = None

    @property
    def streamed(self) -> bool:
        return self.head.result().headers.get("content-type", "").startswith(_STREAM)

    async def take(self, wire: httpx2.AsyncBaseTransport, request: httpx2.Request) -> None:
        """Send the request and read its answer to the end; a failure is kept, not raised."""
        try:
            response = await wire.handle_async_request(request)
            self.head.set_result(response)
            try:
                async for piece in raw_pieces(response):
                    self.body += piece
                    if len(self.body) > MAX_ANSWER_BYTES:
                        raise httpx2.ReadError("the answer is too long")
                    self.grew.set()
            finally:
                await response.aclose()
        except Exception as failure:
            self.failure = failure
            if not self.head.done():
                self.head.set_exception(failure)
                self.head.exception()  # it is looked at here: nobody else may ask
        finally:
            self.grew.set()

    def texts(self) -> list[str]:
        """What every choice says; empty where that cannot be read."""
        return spoken(bytes(self.body), self.streamed)


class _Exchange:
    """λ+1 requests under way."""

    def __init__(self, sent: Obfuscated, obfuscation: Obfuscation) -> None:
        self._sent, self._obfuscation = sent, obfuscation
        self.answers = [_Answer() for _ in sent.bodies]
        self.ended = asyncio.Event()

    async def run(self, wire: httpx2.AsyncBaseTransport, request: httpx2.Request) -> None:
        pairs = zip(self.answers, self._sent.bodies, strict=True)
        requests = [(answer, _with_body(request, body)) for answer, body in pairs]
        try:
            await asyncio.gather(*(answer.take(wire, each) for answer, each in requests))
            if self.failure is None:
                self._obfuscation.remember(self._sent, [answer.texts() for answer in self.answers])
        finally:
            self.ended.set()
            self.real.grew.set()

    @property
    def real(self) -> _Answer:
        return self._sent.order.winnow(self.answers)

    @property
    def failure(self) -> Exception | None:
        """The first in the order of sending: which one failed does not matter."""
        return next((answer.failure for answer in self.answers if answer.failure is not None), None)

    @property
    def refused(self) -> _Answer | None:
        """The first that was refused."""
        return next((each for each in self.answers if each.failure is None and each.head.result().is_error), None)

    async def response(self, request: httpx2.Request) -> httpx2.Response:
        """The head, once all have one."""
        await asyncio.wait([answer.head for answer in self.answers])
        heads = [answer.head for answer in self.answers]
        if any(head.exception() is not None or head.result().is_error for head in heads) or not self.real.streamed:
            await self.ended.wait()
            if (failure := self.failure) is not None:
                raise failure
            given = self.refused or self.real
            return _response(given, request, bytes(given.body))
        return _response(self.real, request, _Handed(self))


class _Handed(httpx2.AsyncByteStream):
    """The real stream's events as they come; its end when all have ended."""

    def __init__(self, exchange: _Exchange) -> None:
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        real, given = self._exchange.real, 0
        while not self._exchange.ended.is_set():
            real.grew.clear()
            last = _LAST.search(real.body)
            # Whole events only, and nothing from the event on that says it is the last.
            until = len(real.body) if last is None else last.start()
            until = real.body.rfind(b"\n\n", 0, until) + 2
            if until > given + 1:
                yield bytes(real.body[given:until])
                given = until
            elif not self._exchange.ended.is_set():
                await real.grew.wait()
        if (failure := self._exchange.failure) is not None:
            raise failure
        yield bytes(real.body[given:])


class AsyncObfuscatingTransport(httpx2.AsyncBaseTransport):
    """Over any other transport: one to a verified node, or one in the clear."""

    def __init__(self, wire: httpx2.AsyncBaseTransport, obfuscation: Obfuscation) -> None:
        self._wire, self._obfuscation = wire, obfuscation
        self._under_way: set[asyncio.Task[None]] = set()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """What cannot be obfuscated is refused as a server refuses a malformed request, and nothing is sent."""
        content = await request.aread()
        sent = None
        try:
            if request.method == "POST":
                sent = await asyncio.to_thread(self._obfuscation.obfuscate, request.url.path, content)
        except InvalidRequest as wrong:
            refusal = Refusal.of(wrong)
            return httpx2.Response(refusal.status, headers=refusal.headers, content=refusal.body, request=request)
        if sent is None:
            return await self._wire.handle_async_request(request)
        exchange = _Exchange(sent, self._obfuscation)
        task = asyncio.get_running_loop().create_task(exchange.run(self._wire, request))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await exchange.response(request)

    async def aclose(self) -> None:
        """All that is under way is cut off at once."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await self._wire.aclose()


class ObfuscatingTransport(httpx2.BaseTransport):
    """The same for `httpx2.Client`: an event loop of its own in a thread."""

    def __init__(self, transport: AsyncObfuscatingTransport) -> None:
        self._transport = transport
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="obfuscation", daemon=True)
        self._thread.start()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        request.read()
        copy = httpx2.Request(
            request.method,
            request.url,
            headers=request.headers,
            content=request.content,
            extensions=request.extensions,
        )
        answer = self._wait(self._transport.handle_async_request(copy))
        assert isinstance(answer.stream, httpx2.AsyncByteStream)
        stream = _Pulled(answer, self)
        return httpx2.Response(answer.status_code, headers=answer.headers, stream=stream, request=request)

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._wait(self._transport.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class _Pulled(httpx2.SyncByteStream):
    """An answer of the loop's thread, read from another one."""

    def __init__(self, answer: httpx2.Response, transport: ObfuscatingTransport) -> None:
        self._answer, self._transport = answer, transport

    def __iter__(self) -> Iterator[bytes]:
        pieces = raw_pieces(self._answer)

        async def following() -> bytes | None:
            return await anext(pieces, None)

        while (piece := self._transport._wait(following())) is not None:
            yield piece

    def close(self) -> None:
        self._transport._wait(self._answer.aclose())


async def raw_pieces(answer: httpx2.Response) -> AsyncIterator[bytes]:
    """The body as it came, or whole where it did not come over a wire: a transport's own refusal."""
    if answer.is_stream_consumed:
        yield answer.content
        return
    async for piece in answer.aiter_raw():
        yield piece


def plain_wire(url: str) -> httpx2.AsyncHTTPTransport:
    """To any server in the clear, with as many connections as there are variants."""
    verify = tls_to(HttpAddress.parse(url))
    return httpx2.AsyncHTTPTransport(verify=verify, trust_env=False, limits=httpx2.Limits())


def _with_body(request: httpx2.Request, body: bytes) -> httpx2.Request:
    headers = [(name, value) for name, value in request.headers.multi_items() if name.lower() not in _HOP]
    return httpx2.Request(
        request.method, request.url, headers=headers, content=body, extensions=dict(request.extensions)
    )


def _response(answer: _Answer, request: httpx2.Request, content: bytes | httpx2.AsyncByteStream) -> httpx2.Response:
    """The answer's head with this body, which is as it came over the wire."""
    head = answer.head.result()
    headers = [(name, value) for name, value in head.headers.multi_items() if name.lower() not in _HOP]
    stream = _Whole(content) if isinstance(content, bytes) else content
    return httpx2.Response(head.status_code, headers=headers, stream=stream, request=request)


class _Whole(httpx2.AsyncByteStream):
    def __init__(self, content: bytes) -> None:
        self._content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._content


def spoken(body: bytes, streamed: bool) -> list[str]:
    """The text of every choice of an answer, in their order; empty where an answer is no plain text."""
    try:
        events = (
            [body]
            if not streamed
            else [line[5:] for line in body.split(b"\n") if line.startswith(b"data:") and line[5:].strip() != b"[DONE]"]
        )
        said: dict[int, str] = {}
        for event in events:
            for choice in json.loads(event).get("choices", ()):
                part = choice.get("delta" if streamed else "message") or {}
                said[choice["index"]] = said.get(choice["index"], "") + (
                    part.get("content") or choice.get("text") or ""
                )
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    return [said[index] for index in sorted(said)]
