"""httpx2 transports that send λ+1 requests for one and hand over the answer to the real one (§5; no server of ours is
needed).

What can be seen from outside does not depend on which is real: all bodies are made before the first is sent, in an
order drawn from a secret, and `client/exchange.py` hands the real answer over in step with the others. Who delays,
stops or cuts one answer learns nothing from what the user does next.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import httpx2

from cloister.addresses import HttpAddress
from cloister.client.address import tls_to
from cloister.client.exchange import Exchange
from cloister.client.message import Refusal
from cloister.errors import InvalidRequest
from cloister.obfuscation.requests import Obfuscation

Result = TypeVar("Result")


class AsyncObfuscatingTransport(httpx2.AsyncBaseTransport):
    """Over any other transport: one to a verified node, or one in the clear."""

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
            refusal = Refusal.of(wrong)
            return httpx2.Response(refusal.status, headers=refusal.headers, content=refusal.body, request=request)
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
