"""httpx2 transports that seal every request to a verified node: nothing leaves them in the clear.

A request is sealed anew for every attempt. Where a refusal in the clear says that the node lost the channel key, or
that the request came too late, the node is verified anew, and the request is sent once more only if that evidence
proves it (`resending`); every other doubt about the channel is an error. Redirects lead nowhere: what is not under seal
is not read, and what is not for this node is not sent. Closing an answer before its authenticated end ends the work on
the node.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress

import httpx2

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
from cloister.client.resending import DENIED, check_denial
from cloister.client.verification import Verification, VerifiedNode
from cloister.client.winnow import IndexSecrets
from cloister.errors import ChannelBroken, CloisterError, InvalidRequest, ServiceUnavailable

_CUT = (httpx2.NetworkError, httpx2.RemoteProtocolError)
"""The connection broke. That is an end like any other: whether the answer is whole, only its seal can tell."""

Raising = Callable[[CloisterError, httpx2.Request], Exception]
"""What to raise for an error of ours, where the caller's library wants one of its own family."""


class _Opening:
    """One answer without its I/O: `_take` what the wire brings; `_response` and `_given` say what came of it."""

    def __init__(
        self, outer: httpx2.Response, message: SealedMessage, raising: Raising, request: httpx2.Request
    ) -> None:
        self._outer = outer
        self._sealed = is_sealed(outer.status_code, outer.headers.get("content-type", ""))
        self._answer = SealedAnswer(message.opener, message.winnower)
        self._raising = raising
        self._request = request
        self._opened = b""
        self._clear = b""
        self._whole = False

    def _take(self, piece: bytes | None) -> None:
        """More of the answer. None is its end, which must not come before the authenticated one."""
        if not self._sealed:
            self._clear += piece or b""
            self._whole = piece is None or len(self._clear) >= MAX_REFUSAL_BYTES
        elif piece is None:
            self._answer.finish()
            self._whole = True
        else:
            self._opened += self._answer.feed(piece)

    def _response(self, stream: httpx2.SyncByteStream | httpx2.AsyncByteStream) -> httpx2.Response | None:
        """The response, once enough was taken: a sealed head, or of a refusal a little, and only to find its code."""
        if not self._sealed and self._whole:
            retry_after = self._outer.headers.get("retry-after", "")
            return _refused(read_refusal(self._outer.status_code, retry_after, self._clear), self._request)
        if (head := self._answer.head) is None:
            return None
        headers = [(name, value) for name, value in head.headers if name.lower() not in HOP_BY_HOP]
        return httpx2.Response(head.status, headers=headers, stream=stream, request=self._request)

    def _given(self) -> bytes:
        """What may be handed out. The last of it waits for HTTP's own end, or the connection could not serve again."""
        if self._answer.ended and not self._whole:
            return b""
        opened, self._opened = self._opened, b""
        return opened


class OpenedStream(_Opening, httpx2.SyncByteStream):
    """For `httpx2.Client`."""

    def begin(self) -> httpx2.Response:
        """Read as far as the head."""
        self._pieces = self._outer.iter_raw()
        try:
            while (response := self._response(self)) is None:
                self._take(self._next())
        except BaseException:
            self.close()
            raise
        if not self._sealed:
            self.close()
        return response

    def __iter__(self) -> Iterator[bytes]:
        try:
            while self._opened or not self._whole:
                if opened := self._given():
                    yield opened
                else:
                    self._take(self._next())
        except CloisterError as error:
            raise self._raising(error, self._request) from None
        finally:
            self.close()

    def close(self) -> None:
        self._answer.close()
        self._outer.close()

    def _next(self) -> bytes | None:
        with suppress(*_CUT):
            return next(self._pieces, None)
        return None


class AsyncOpenedStream(_Opening, httpx2.AsyncByteStream):
    """For `httpx2.AsyncClient`."""

    async def begin(self) -> httpx2.Response:
        self._pieces = self._outer.aiter_raw()
        try:
            while (response := self._response(self)) is None:
                self._take(await self._next())
        except BaseException:
            await self.aclose()
            raise
        if not self._sealed:
            await self.aclose()
        return response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while self._opened or not self._whole:
                if opened := self._given():
                    yield opened
                else:
                    self._take(await self._next())
        except CloisterError as error:
            raise self._raising(error, self._request) from None
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        self._answer.close()
        await self._outer.aclose()

    async def _next(self) -> bytes | None:
        with suppress(*_CUT):
            return await anext(self._pieces, None)
        return None


def as_it_is(error: CloisterError, request: httpx2.Request) -> Exception:
    return error


class _Sealing:
    """What both transports do without I/O."""

    def __init__(self, node: VerifiedNode, *, raising: Raising = as_it_is) -> None:
        self._node = node
        self._raising = raising
        self._secrets = IndexSecrets()

    def _sealed(self, request: httpx2.Request, verification: Verification) -> tuple[httpx2.Request, SealedMessage]:
        """What everybody on the way sees, the same for every user but for the ciphertext; and what opens the answer."""
        url = request.url
        address = self._node.address
        port = url.port or (443 if url.scheme == "https" else 80)
        if (url.scheme, url.host, port) != (address.scheme, address.host, address.port):
            raise ChannelBroken(
                "The request is for another server than the one that was verified.", hint="It was not sent anywhere."
            )
        path = address.endpoint(url.raw_path.decode("ascii"))
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw]
        key, now = verification.channel_key, verification.node_ms()
        message = seal_message(key, request.method, path, headers, request.content, now, self._secrets)
        timeout = {name: value for name, value in request.extensions.items() if name == "timeout"}
        outer = httpx2.Request(
            "POST", address.url(ENDPOINT), headers=OUTER_HEADERS, content=message.envelope, extensions=timeout
        )
        return outer, message

    def _instead(self, error: CloisterError, request: httpx2.Request) -> httpx2.Response:
        """What comes of a request that could not be exchanged: a refusal of our own, or an error to raise."""
        if isinstance(error, InvalidRequest):
            return _refused(Refusal.of(error), request)
        if isinstance(error, ServiceUnavailable):
            raise httpx2.ConnectError(str(error), request=request) from None
        raise self._raising(error, request) from None


class SealedTransport(_Sealing, httpx2.BaseTransport):
    """For `httpx2.Client`."""

    def __init__(self, node: VerifiedNode, *, raising: Raising = as_it_is) -> None:
        super().__init__(node, raising=raising)
        self._wire = httpx2.HTTPTransport(verify=tls_to(node.address))

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Wait for the answer's head; the body is opened as it is read."""
        request.read()
        try:
            verification = self._node.verified()
            outer, message = self._sealed(request, verification)
            try:
                return self._exchange(outer, message, request)
            except DENIED as said:
                now = self._node.verified(after=verification)
                check_denial(said, message, verification, now)
                return self._exchange(*self._sealed(request, now), request)
        except CloisterError as error:
            return self._instead(error, request)

    def close(self) -> None:
        self._wire.close()

    def _exchange(self, outer: httpx2.Request, message: SealedMessage, request: httpx2.Request) -> httpx2.Response:
        return OpenedStream(self._wire.handle_request(outer), message, self._raising, request).begin()


class AsyncSealedTransport(_Sealing, httpx2.AsyncBaseTransport):
    """For `httpx2.AsyncClient`. Verifying anew happens in a thread, beside the event loop."""

    def __init__(self, node: VerifiedNode, *, raising: Raising = as_it_is) -> None:
        super().__init__(node, raising=raising)
        self._wire = httpx2.AsyncHTTPTransport(verify=tls_to(node.address))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await request.aread()
        try:
            verification = await self._node.verified_beside()
            outer, message = self._sealed(request, verification)
            try:
                return await self._exchange(outer, message, request)
            except DENIED as said:
                now = await self._node.verified_beside(after=verification)
                check_denial(said, message, verification, now)
                return await self._exchange(*self._sealed(request, now), request)
        except CloisterError as error:
            return self._instead(error, request)

    async def aclose(self) -> None:
        await self._wire.aclose()

    async def _exchange(
        self, outer: httpx2.Request, message: SealedMessage, request: httpx2.Request
    ) -> httpx2.Response:
        answer = await self._wire.handle_async_request(outer)
        return await AsyncOpenedStream(answer, message, self._raising, request).begin()


def _refused(refusal: Refusal, request: httpx2.Request) -> httpx2.Response:
    return httpx2.Response(refusal.status, headers=refusal.headers, content=refusal.body, request=request)
