"""An asynchronous httpx2 transport for programs without an event loop: the loop runs in a thread."""

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar

import httpx2

Result = TypeVar("Result")


class BlockingTransport(httpx2.BaseTransport):
    def __init__(self, transport: httpx2.AsyncBaseTransport) -> None:
        self._transport = transport
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="client", daemon=True)
        self._thread.start()
        # A client that is dropped without `close` ends its thread.
        self._dropped = weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        request.read()
        content, more = request.content, request.extensions
        copy = httpx2.Request(request.method, request.url, headers=request.headers, content=content, extensions=more)
        answer = self.wait(self._transport.handle_async_request(copy))
        stream = _BlockingStream(answer, self)
        return httpx2.Response(answer.status_code, headers=answer.headers, stream=stream, request=request)

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self.wait(self._transport.aclose())
        self._dropped()
        self._thread.join()
        self._loop.close()

    def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of work in the loop; a caller that is interrupted ends the work."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


class _BlockingStream(httpx2.SyncByteStream):
    def __init__(self, answer: httpx2.Response, transport: BlockingTransport) -> None:
        self._answer, self._transport = answer, transport

    def __iter__(self) -> Iterator[bytes]:
        pieces = raw_pieces(self._answer)

        async def following() -> bytes | None:
            return await anext(pieces, None)

        while (piece := self._transport.wait(following())) is not None:
            yield piece

    def close(self) -> None:
        self._transport.wait(self._answer.aclose())


async def raw_pieces(answer: httpx2.Response) -> AsyncIterator[bytes]:
    """The body as it came, or whole where it did not come over a wire: a transport's own refusal."""
    if answer.is_stream_consumed:
        yield answer.content
        return
    async for piece in answer.aiter_raw():
        yield piece
