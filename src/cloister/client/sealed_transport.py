"""httpx2 transports that seal every request. A refusal in the clear may be forged: a request goes again only if new
evidence shows that the node could not open it, and not at `obfuscated`."""

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import httpx2

from cloister.channel.envelope import CLOCKS_MAY_DIFFER_S
from cloister.client import message as messages
from cloister.client.message import Refusal, SealedMessage
from cloister.client.verification import Verification, VerifiedNode
from cloister.client.winnow import IndexSecrets
from cloister.errors import (
    ChannelBroken,
    ChannelKeyUnknown,
    CloisterError,
    InvalidRequest,
    MessageExpired,
    ServiceUnavailable,
)

CUT = (httpx2.NetworkError, httpx2.RemoteProtocolError)  # only the seal shows whether the answer was whole
Raising = Callable[[CloisterError, httpx2.Request], Exception]  # for libraries with exceptions of one family
DENIED = (ChannelKeyUnknown, MessageExpired)  # Refusals in the clear that evidence can prove or disprove.


def check_denial(denial: ChannelBroken, message: SealedMessage, before: Verification, now: Verification) -> None:
    """Return if the evidence of `now` proves the denial of a message sealed by that of `before`; raise otherwise."""
    if isinstance(denial, MessageExpired):
        # Evidence takes time to arrive, which attackers can prolong: the clock was up to `took_s` after `earliest_s`.
        earliest_s = (now.node_ms() - before.node_ms()) / 1000
        too_old = earliest_s > message.validity.for_ms / 1000 + CLOCKS_MAY_DIFFER_S
        not_yet = earliest_s + now.took_s < -CLOCKS_MAY_DIFFER_S
        if not too_old and not not_yet:
            said = "A refusal says that the sealed request came too late. By the node's clock it was sent in time."
            hint = "Messages are held back on the way, or the node is overloaded. It was not sent again."
            raise MessageExpired(said, hint=hint)
    elif now.channel_key == before.channel_key:
        said = "A refusal says that the node does not hold its channel key. By its evidence it does."
        hint = "Messages are refused on the way, in the node's name. The request may have been served"
        raise ChannelKeyUnknown(said, hint=f"{hint}; it was not sent again.")
    elif message.winnower is not None:
        said = "The node has another channel key: it started again, and what its sessions remembered is gone."
        hint = "The node was verified again. Send the request again, in a new session."
        raise ChannelKeyUnknown(f"{said} The request was not sent again.", hint=hint)


def as_it_is(error: CloisterError, request: httpx2.Request) -> Exception:
    return error


async def open_answer(
    outer: httpx2.Response, sent: SealedMessage, raising: Raising, request: httpx2.Request
) -> httpx2.Response:
    """The answer under the seal. Of a refusal in the clear a little is read, and only to find its code."""
    if messages.is_sealed(outer.status_code, outer.headers.get("content-type", "")):
        return await OpenedStream(outer, sent, raising, request).begin()
    clear = b""
    try:
        with suppress(*CUT):
            async for piece in raw_pieces(outer):
                clear += piece
                if len(clear) >= messages.MAX_REFUSAL_BYTES:
                    break
    finally:
        await outer.aclose()
    return refused(messages.read_refusal(outer.status_code, outer.headers.get("retry-after", ""), clear), request)


class OpenedStream(httpx2.AsyncByteStream):
    def __init__(self, outer: httpx2.Response, sent: SealedMessage, raising: Raising, request: httpx2.Request) -> None:
        self._outer, self._pieces = outer, outer.aiter_raw()
        self._answer = messages.SealedAnswer(sent.opener, sent.winnower)
        self._raising, self._request = raising, request
        self._opened, self._more = b"", True

    async def begin(self) -> httpx2.Response:
        try:
            while (head := self._answer.head) is None:
                await self._take()
        except BaseException:
            await self.aclose()
            raise
        headers = [(name, value) for name, value in head.headers if name.lower() not in messages.HOP_BY_HOP]
        return httpx2.Response(head.status, headers=headers, stream=self, request=self._request)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while self._more or self._opened:
                # The last of it waits for HTTP's own end, or the connection could not serve again.
                if self._opened and not (self._more and self._answer.ended):
                    opened, self._opened = self._opened, b""
                    yield opened
                else:
                    await self._take()
        except CloisterError as error:
            raise self._raising(error, self._request) from None
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        self._answer.close()
        await self._outer.aclose()

    async def _take(self) -> None:
        """More of the answer. Its end must not come before the authenticated one."""
        piece = None
        with suppress(*CUT):
            piece = await anext(self._pieces, None)
        if piece is None:
            self._answer.finish()
            self._more = False
        else:
            self._opened += self._answer.feed(piece)


class AsyncSealedTransport(httpx2.AsyncBaseTransport):
    """For `httpx2.AsyncClient`. The node is verified again in a thread, beside the event loop."""

    def __init__(self, node: VerifiedNode, *, raising: Raising = as_it_is) -> None:
        self._node = node
        self._wire = node.wire()
        self._raising = raising
        self._secrets = IndexSecrets()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await request.aread()
        try:
            verification = await self._node.verified_beside()
            outer, message = self._sealed(request, verification)
            try:
                return await self._exchange(outer, message, request)
            except DENIED as denial:
                now = await self._node.verified_beside(after=verification)
                check_denial(denial, message, verification, now)
                return await self._exchange(*self._sealed(request, now), request)
        except InvalidRequest as wrong:
            return refused(Refusal.of(wrong), request)
        except ServiceUnavailable as gone:
            raise httpx2.ConnectError(str(gone), request=request) from None
        except CloisterError as error:
            raise self._raising(error, request) from None

    async def aclose(self) -> None:
        await self._wire.aclose()

    async def _exchange(self, outer: httpx2.Request, sent: SealedMessage, request: httpx2.Request) -> httpx2.Response:
        return await open_answer(await self._wire.handle_async_request(outer), sent, self._raising, request)

    def _sealed(self, request: httpx2.Request, verification: Verification) -> tuple[httpx2.Request, SealedMessage]:
        """The request on the wire, the same for every user except the ciphertext; and what opens its answer."""
        url = request.url
        address = self._node.address
        port = url.port or (443 if url.scheme == "https" else 80)
        if (url.scheme, url.host, port) != (address.scheme, address.host, address.port):
            said = "The request is for another server than the one that was verified."
            raise ChannelBroken(said, hint="It was not sent anywhere.")
        path = address.endpoint(url.raw_path.decode("ascii"))
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw]
        key, now = verification.channel_key, verification.node_ms()
        message = messages.seal_message(key, request.method, path, headers, request.content, now, self._secrets)
        timeout = {name: value for name, value in request.extensions.items() if name == "timeout"}
        to, outer = address.url(messages.ENDPOINT), messages.OUTER_HEADERS
        return httpx2.Request("POST", to, headers=outer, content=message.envelope, extensions=timeout), message


def refused(refusal: Refusal, request: httpx2.Request) -> httpx2.Response:
    return httpx2.Response(refusal.status, headers=refusal.headers, content=refusal.body, request=request)


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
