"""Answers opened as they are read: the bodies of httpx2 responses, for threads and for event loops.

They know frames and when an answer is whole. Closing one before its end ends the work on the node.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import httpx2

from cloister.channel.stream import StreamOpener
from cloister.client.answer import MAX_REFUSAL_BYTES, SealedAnswer
from cloister.client.message import HOP_BY_HOP
from cloister.errors import CloisterError

Raising = Callable[[CloisterError, httpx2.Request], Exception]
"""What to raise for an error of ours, where the caller's library wants one of its own family."""


class _Opening:
    """What both kinds have in common."""

    def __init__(self, opener: StreamOpener, raising: Raising, request: httpx2.Request) -> None:
        self._answer = SealedAnswer(opener)
        self._raising = raising
        self._request = request
        self._opened = b""
        self._whole = False

    def _response(self, stream: httpx2.SyncByteStream | httpx2.AsyncByteStream) -> httpx2.Response:
        head = self._answer.head
        assert head is not None
        headers = [(name, value) for name, value in head.headers if name.lower() not in HOP_BY_HOP]
        return httpx2.Response(head.status, headers=headers, stream=stream, request=self._request)

    def _take(self, piece: bytes | None) -> None:
        """More of the sealed stream; None is its end, which must not come before the authenticated one."""
        if piece is None:
            self._answer.finish()
        else:
            self._opened += self._answer.feed(piece)

    def _given(self) -> bytes:
        """What is opened, to be handed out."""
        opened, self._opened = self._opened, b""
        return opened


class OpenedStream(_Opening, httpx2.SyncByteStream):
    """For `httpx2.Client`."""

    def __init__(self, outer: httpx2.Response, opener: StreamOpener, raising: Raising, request: httpx2.Request) -> None:
        super().__init__(opener, raising, request)
        assert isinstance(outer.stream, httpx2.SyncByteStream)
        self._wire = outer.stream
        self._pieces = iter(outer.stream)

    def begin(self) -> httpx2.Response:
        """Read as far as the head; the response it makes."""
        while self._answer.head is None:
            self._take(next(self._pieces, None))
        return self._response(self)

    def clear_text(self) -> bytes:
        """A refusal's body: a little of it, and only to find its code."""
        text = b""
        while len(text) < MAX_REFUSAL_BYTES and (piece := next(self._pieces, None)) is not None:
            text += piece
        self.close()
        return text

    def __iter__(self) -> Iterator[bytes]:
        try:
            while not self._answer.ended:
                if self._opened:
                    yield self._given()
                else:
                    self._take(next(self._pieces, None))
            if not self._whole:
                # To HTTP's own end, too, before the last piece is given: else the connection could not be used again.
                for trailing in self._pieces:
                    self._take(trailing)
                self._take(None)
                self._whole = True
            if self._opened:
                yield self._given()
        except CloisterError as error:
            raise self._raising(error, self._request) from None
        finally:
            self.close()

    def close(self) -> None:
        self._answer.close()
        self._wire.close()


class AsyncOpenedStream(_Opening, httpx2.AsyncByteStream):
    """For `httpx2.AsyncClient`."""

    def __init__(self, outer: httpx2.Response, opener: StreamOpener, raising: Raising, request: httpx2.Request) -> None:
        super().__init__(opener, raising, request)
        assert isinstance(outer.stream, httpx2.AsyncByteStream)
        self._wire = outer.stream
        self._pieces = aiter(outer.stream)

    async def begin(self) -> httpx2.Response:
        """Read as far as the head; the response it makes."""
        while self._answer.head is None:
            self._take(await anext(self._pieces, None))
        return self._response(self)

    async def clear_text(self) -> bytes:
        """A refusal's body: a little of it, and only to find its code."""
        text = b""
        while len(text) < MAX_REFUSAL_BYTES and (piece := await anext(self._pieces, None)) is not None:
            text += piece
        await self.aclose()
        return text

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while not self._answer.ended:
                if self._opened:
                    yield self._given()
                else:
                    self._take(await anext(self._pieces, None))
            if not self._whole:
                async for trailing in self._pieces:
                    self._take(trailing)
                self._take(None)
                self._whole = True
            if self._opened:
                yield self._given()
        except CloisterError as error:
            raise self._raising(error, self._request) from None
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        self._answer.close()
        await self._wire.aclose()
