"""httpx2 transports that seal every request to a verified node, and send nothing in the clear. A refusal in the clear
may be forged to have a request served twice. So the request is sent again only if new evidence shows that the node
could not open it, and not at all at a level that hides a prompt among others: new substitutes would be drawn."""

from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import httpx2

from cloister.channel.envelope import CLOCKS_MAY_DIFFER_S
from cloister.client import message as messages
from cloister.client.message import Refusal, SealedMessage
from cloister.client.verification import Verification, VerifiedNode, tls_to
from cloister.client.winnow import IndexSecrets
from cloister.errors import (
    ChannelBroken,
    ChannelKeyUnknown,
    CloisterError,
    InvalidRequest,
    MessageExpired,
    ServiceUnavailable,
)

_CUT = (httpx2.NetworkError, httpx2.RemoteProtocolError)  # only the seal shows whether the answer was whole
Raising = Callable[[CloisterError, httpx2.Request], Exception]  # for libraries with exceptions of one family
DENIED = (ChannelKeyUnknown, MessageExpired)  # Refusals in the clear that evidence can prove or disprove.


def check_denial(denial: ChannelBroken, message: SealedMessage, before: Verification, now: Verification) -> None:
    """Return if the evidence of `now` proves the denial of a message sealed by that of `before`; raise otherwise."""
    if isinstance(denial, MessageExpired):
        if not _was_invalid(message, before, now):
            said = "A refusal says that the sealed request came too late. By the node's clock it was sent in time."
            hint = "Messages are held back on the way, or the node is overloaded. It was not sent again."
            raise MessageExpired(said, hint=hint)
    elif now.channel_key == before.channel_key:
        raise ChannelKeyUnknown(
            "A refusal says that the node does not hold its channel key. By its evidence it does.",
            hint="Messages are refused on the way, in the node's name. The request may have been served; it was not "
            "sent again.",
        )
    elif message.winnower is not None:
        raise ChannelKeyUnknown(
            "The node has another channel key: it started again, and what its sessions remembered is gone. The request "
            "was not sent again.",
            hint="The node was verified again. Send the request again, in a new session.",
        )


def _was_invalid(message: SealedMessage, before: Verification, now: Verification) -> bool:
    """Evidence takes time to arrive, which attackers can prolong: the clock was up to `took_s` after `earliest_s`."""
    earliest_s = (now.node_ms() - before.node_ms()) / 1000
    too_old = earliest_s > message.validity.for_ms / 1000 + CLOCKS_MAY_DIFFER_S
    not_yet = earliest_s + now.took_s < -CLOCKS_MAY_DIFFER_S
    return too_old or not_yet


def as_it_is(error: CloisterError, request: httpx2.Request) -> Exception:
    return error


class OpenedStream(httpx2.AsyncByteStream):
    def __init__(self, outer: httpx2.Response, sent: SealedMessage, raising: Raising, request: httpx2.Request) -> None:
        self._outer = outer
        self._sealed = messages.is_sealed(outer.status_code, outer.headers.get("content-type", ""))
        self._answer = messages.SealedAnswer(sent.opener, sent.winnower)
        self._raising = raising
        self._request = request
        self._opened = b""
        self._clear = b""
        self._whole = False

    async def begin(self) -> httpx2.Response:
        self._pieces = self._outer.aiter_raw()
        try:
            while (response := self._response()) is None:
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

    def _take(self, piece: bytes | None) -> None:
        """More of the answer. None is its end, which must not come before the authenticated one."""
        if not self._sealed:
            self._clear += piece or b""
            self._whole = piece is None or len(self._clear) >= messages.MAX_REFUSAL_BYTES
        elif piece is None:
            self._answer.finish()
            self._whole = True
        else:
            self._opened += self._answer.feed(piece)

    def _response(self) -> httpx2.Response | None:
        """The response, once enough was taken: a sealed head, or of a refusal a little, and only to find its code."""
        if not self._sealed and self._whole:
            retry_after = self._outer.headers.get("retry-after", "")
            return _refused(messages.read_refusal(self._outer.status_code, retry_after, self._clear), self._request)
        if (head := self._answer.head) is None:
            return None
        headers = [(name, value) for name, value in head.headers if name.lower() not in messages.HOP_BY_HOP]
        return httpx2.Response(head.status, headers=headers, stream=self, request=self._request)

    def _given(self) -> bytes:
        """What may be handed out. The last of it waits for HTTP's own end, or the connection could not serve again."""
        if self._answer.ended and not self._whole:
            return b""
        opened, self._opened = self._opened, b""
        return opened


class AsyncSealedTransport(httpx2.AsyncBaseTransport):
    """For `httpx2.AsyncClient`. The node is verified again in a thread, beside the event loop."""

    def __init__(self, node: VerifiedNode, *, raising: Raising = as_it_is) -> None:
        self._node = node
        self._wire = httpx2.AsyncHTTPTransport(verify=tls_to(node.address), limits=httpx2.Limits())
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
        except CloisterError as error:
            return self._instead(error, request)

    async def aclose(self) -> None:
        await self._wire.aclose()

    async def _exchange(self, outer: httpx2.Request, sent: SealedMessage, request: httpx2.Request) -> httpx2.Response:
        answer = await self._wire.handle_async_request(outer)
        return await OpenedStream(answer, sent, self._raising, request).begin()

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

    def _instead(self, error: CloisterError, request: httpx2.Request) -> httpx2.Response:
        if isinstance(error, InvalidRequest):
            return _refused(Refusal.of(error), request)
        if isinstance(error, ServiceUnavailable):
            raise httpx2.ConnectError(str(error), request=request) from None
        raise self._raising(error, request) from None


def _refused(refusal: Refusal, request: httpx2.Request) -> httpx2.Response:
    return httpx2.Response(refusal.status, headers=refusal.headers, content=refusal.body, request=request)
