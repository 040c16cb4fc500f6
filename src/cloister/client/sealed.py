"""httpx2 transports that seal every request to a verified node: no path of theirs leads out in the clear.

A request is sealed anew for every attempt. If the node has lost the channel key (it started again), it is verified anew
and the request is sent once more; every other doubt about the channel is an error. Redirects lead nowhere: what is not
under seal is not read, and what is not for this node is not sent. Answers are opened as they are read, and are whole
only with their authenticated end; closing one before that ends the work on the node.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import httpx2

from cloister.channel.stream import StreamOpener
from cloister.client.address import tls_to
from cloister.client.message import (
    ENDPOINT,
    HOP_BY_HOP,
    MAX_REFUSAL_BYTES,
    OUTER_HEADERS,
    Refusal,
    SealedAnswer,
    SealedMessage,
    is_sealed,
    read_refusal,
    seal_message,
)
from cloister.client.verification import Verification, VerifiedNode
from cloister.errors import ChannelBroken, ChannelKeyUnknown, CloisterError, InvalidRequest, ServiceUnavailable

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


def as_it_is(error: CloisterError, request: httpx2.Request) -> Exception:
    return error


class SealedTransport(httpx2.BaseTransport):
    """For `httpx2.Client`."""

    def __init__(
        self, node: VerifiedNode, *, raising: Raising = as_it_is, wire: httpx2.BaseTransport | None = None
    ) -> None:
        self._node = node
        self._raising = raising
        self._wire = wire or httpx2.HTTPTransport(verify=tls_to(node.address))

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request and wait for its answer's head; the body is opened as it is read."""
        body = request.read()
        try:
            return self._exchange(request, body)
        except InvalidRequest as wrong:
            return _refused(Refusal.of(wrong), request)
        except ServiceUnavailable as gone:
            raise httpx2.ConnectError(str(gone), request=request) from None
        except CloisterError as error:
            raise self._raising(error, request) from None

    def close(self) -> None:
        self._wire.close()

    def _exchange(self, request: httpx2.Request, body: bytes) -> httpx2.Response:
        verification = self._node.verified()
        try:
            return self._attempt(request, body, verification)
        except ChannelKeyUnknown:
            return self._attempt(request, body, self._node.verified(after=verification))

    def _attempt(self, request: httpx2.Request, body: bytes, verification: Verification) -> httpx2.Response:
        message = _sealed(self._node, request, body, verification)
        outer = self._wire.handle_request(_outer(self._node, request, message))
        stream = OpenedStream(outer, message.opener, self._raising, request)
        try:
            if is_sealed(outer.status_code, outer.headers.get("content-type", "")):
                return stream.begin()
            return _refused(_refusal(outer, stream.clear_text()), request)
        except BaseException:
            stream.close()
            raise


class AsyncSealedTransport(httpx2.AsyncBaseTransport):
    """For `httpx2.AsyncClient`. Verifying anew happens in a thread, beside the event loop."""

    def __init__(
        self, node: VerifiedNode, *, raising: Raising = as_it_is, wire: httpx2.AsyncBaseTransport | None = None
    ) -> None:
        self._node = node
        self._raising = raising
        self._wire = wire or httpx2.AsyncHTTPTransport(verify=tls_to(node.address))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request and wait for its answer's head; the body is opened as it is read."""
        body = await request.aread()
        try:
            return await self._exchange(request, body)
        except InvalidRequest as wrong:
            return _refused(Refusal.of(wrong), request)
        except ServiceUnavailable as gone:
            raise httpx2.ConnectError(str(gone), request=request) from None
        except CloisterError as error:
            raise self._raising(error, request) from None

    async def aclose(self) -> None:
        await self._wire.aclose()

    async def _exchange(self, request: httpx2.Request, body: bytes) -> httpx2.Response:
        verification = await self._node.verified_beside()
        try:
            return await self._attempt(request, body, verification)
        except ChannelKeyUnknown:
            verification = await self._node.verified_beside(after=verification)
            return await self._attempt(request, body, verification)

    async def _attempt(self, request: httpx2.Request, body: bytes, verification: Verification) -> httpx2.Response:
        message = _sealed(self._node, request, body, verification)
        outer = await self._wire.handle_async_request(_outer(self._node, request, message))
        stream = AsyncOpenedStream(outer, message.opener, self._raising, request)
        try:
            if is_sealed(outer.status_code, outer.headers.get("content-type", "")):
                return await stream.begin()
            return _refused(_refusal(outer, await stream.clear_text()), request)
        except BaseException:
            await stream.aclose()
            raise


def _sealed(node: VerifiedNode, request: httpx2.Request, body: bytes, verification: Verification) -> SealedMessage:
    url = request.url
    address = node.address
    port = url.port or (443 if url.scheme == "https" else 80)
    if (url.scheme, url.host, port) != (address.scheme, address.host, address.port):
        raise ChannelBroken(
            "The request is for another server than the one that was verified.", hint="It was not sent anywhere."
        )
    path = address.endpoint(url.raw_path.decode("ascii"))
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw]
    return seal_message(verification.channel_key, request.method, path, headers, body)


def _outer(node: VerifiedNode, request: httpx2.Request, message: SealedMessage) -> httpx2.Request:
    """What everybody on the way sees: the same for every user, but for the ciphertext."""
    return httpx2.Request(
        "POST",
        node.address.url(ENDPOINT),
        headers=OUTER_HEADERS,
        content=message.envelope,
        extensions={name: value for name, value in request.extensions.items() if name == "timeout"},
    )


def _refusal(outer: httpx2.Response, clear_text: bytes) -> Refusal:
    return read_refusal(outer.status_code, outer.headers.get("retry-after", ""), clear_text)


def _refused(refusal: Refusal, request: httpx2.Request) -> httpx2.Response:
    return httpx2.Response(refusal.status, headers=refusal.headers, content=refusal.body, request=request)
