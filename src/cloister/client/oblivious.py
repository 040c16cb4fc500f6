"""A node behind an oblivious relay (RFC 9458): the relay learns no content, the node no address, not even when it
is verified. A request is sent whole before its answer is read; the key is the one that all users of the relay get."""

from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from time import sleep

import httpx2
import msgspec

from cloister.addresses import HttpAddress
from cloister.attest.evidence import NodeEvidence
from cloister.attest.policy import Policy
from cloister.channel import bhttp, ohttp
from cloister.channel.ohttp import encapsulation
from cloister.channel.ohttp.chunks import ChunkOpener, ChunkSealer
from cloister.channel.ohttp.encapsulation import ExchangeKeys, Form, Header
from cloister.channel.ohttp.keys import MAX_DOCUMENT_BYTES, KeyConfiguration, document_of, read_keys
from cloister.client.sealed_transport import BlockingTransport
from cloister.client.verification import (
    CONNECT_S,
    INSTANCE,
    Verification,
    VerifiedNode,
    ask_for_evidence,
    exchange,
    tls_to,
    verify,
)
from cloister.errors import ChannelBroken, ChannelKeyUnknown, ServiceUnavailable, VerificationFailed

WAITS_S = (0.0, 1.0, 2.0, 3.0)  # a relay may show a key for some seconds after it was replaced
_OUTER = (("Content-Type", ohttp.CHUNKED_REQUEST_TYPE), ("Accept", ohttp.CHUNKED_RESPONSE_TYPE), ohttp.INCREMENTAL)
_INNER = ("content-type", "accept")
_GRAIN_BYTES = 512  # of inner requests, so that the evidence that a user asks for tells nothing
_MOST_CONTENT = 1 << 32
_REFUSAL_BYTES = 64 * 1024
_CUT = (httpx2.NetworkError, httpx2.RemoteProtocolError)


class ObliviousTransport(httpx2.AsyncBaseTransport):
    """Encapsulates each request to the node's key and sends it to the relay."""

    def __init__(self, node: HttpAddress, relay: HttpAddress, configuration: KeyConfiguration) -> None:
        self._node, self._url = node, relay.url(node.resource)
        self.configuration = configuration
        self._wire = httpx2.AsyncHTTPTransport(verify=tls_to(relay), limits=httpx2.Limits())

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        headers = tuple((name, request.headers[name]) for name in _INNER if name in request.headers)
        path = request.url.raw_path.decode("ascii")
        head = bhttp.RequestHead(request.method, self._node.scheme, self._node.authority, path, headers)
        message = bhttp.encode(bhttp.Message(head, await request.aread()))
        message += bytes(-len(message) % _GRAIN_BYTES)
        header, keys = encapsulation.encapsulate(self.configuration, Form.CHUNKED)
        body = ChunkSealer(encapsulation.request_chain(header, keys), header.encode()).end(message)
        timeout = {name: value for name, value in request.extensions.items() if name == "timeout"}
        outer = httpx2.Request("POST", self._url, headers=_OUTER, content=body, extensions=timeout)
        answer = await self._wire.handle_async_request(outer)
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if answer.status_code == 200 and kind == ohttp.CHUNKED_RESPONSE_TYPE:
            return await _OpenedAnswer(answer, header, keys).begin(request)
        return await _refusal(answer, request)

    async def aclose(self) -> None:
        await self._wire.aclose()


async def _refusal(answer: httpx2.Response, request: httpx2.Request) -> httpx2.Response:
    """A refusal outside of the encapsulation, which any machine on the way may have made."""
    text = b""
    try:
        with suppress(*_CUT):
            async for piece in answer.aiter_raw():
                text += piece
                if len(text) > _REFUSAL_BYTES:
                    break
    finally:
        await answer.aclose()
    if answer.status_code == 400 and _type_of(text) == ohttp.KEY_PROBLEM:
        raise ChannelKeyUnknown("The node says that it does not hold the key of the encapsulated request.")
    if answer.status_code < 400:
        raise ChannelBroken("The relay answered without encapsulation.", hint="Is that a relay to a Cloister node?")
    headers = {name: answer.headers[name] for name in ("content-type", "retry-after") if name in answer.headers}
    return httpx2.Response(answer.status_code, headers=headers, content=text, request=request)


def _type_of(problem: bytes) -> object:
    try:
        return msgspec.json.decode(problem, type=dict[str, object]).get("type")
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


class _OpenedAnswer(httpx2.AsyncByteStream):
    """The answer in an encapsulated one. Without its last chunk it is an error, whatever HTTP says."""

    def __init__(self, outer: httpx2.Response, header: Header, keys: ExchangeKeys) -> None:
        self._outer, self._pieces = outer, outer.aiter_raw()
        begins = encapsulation.ENTROPY_BYTES[header.aead]
        self._opener = ChunkOpener(lambda nonce: encapsulation.response_chain(header, keys, nonce), begins)
        self._decoder = bhttp.Decoder(_MOST_CONTENT)
        self._content: list[bytes] = []
        self._head: bhttp.ResponseHead | None = None
        self._ended = False

    async def begin(self, request: httpx2.Request) -> httpx2.Response:
        try:
            while self._head is None:
                await self._take()
        except BaseException:
            await self.aclose()
            raise
        headers = [(name, value) for name, value in self._head.headers if name != "content-length"]
        return httpx2.Response(self._head.status, headers=headers, stream=self, request=request)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while self._content or not self._ended:
                content, self._content = self._content, []
                for piece in content:
                    yield piece
                if not self._ended:
                    await self._take()
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        await self._outer.aclose()

    async def _take(self) -> None:
        if self._ended:
            raise ChannelBroken("The encapsulated answer has no head.")
        piece = None
        with suppress(*_CUT):
            piece = await anext(self._pieces, None)
        if piece is None:
            self._ended = True
            events = self._decoder.feed(self._opener.finish()) + self._decoder.finish()
        else:
            events = self._decoder.feed(self._opener.feed(piece))
        for event in events:
            if isinstance(event, bytes):
                self._content.append(event)
            elif isinstance(event, bhttp.RequestHead):
                raise ChannelBroken("The encapsulated answer is a request.")
            elif isinstance(event, bhttp.ResponseHead) and event.status >= 200:
                self._head = event


class RelayedNode(VerifiedNode):
    """A verified node that is reached through a relay and in no other way."""

    def __init__(self, url: str, policy: Policy, relay: str) -> None:
        self.relay = HttpAddress.parse(relay)
        self._configuration: KeyConfiguration | None = None
        self._wires: list[ObliviousTransport] = []
        super().__init__(url, policy, verifier=self._verify_through)

    def wire(self) -> httpx2.AsyncBaseTransport:
        assert self._configuration is not None, "it was verified"
        self._wires.append(made := ObliviousTransport(self.address, self.relay, self._configuration))
        return made

    def _verify_through(self, address: HttpAddress, policy: Policy) -> Verification:
        """By evidence that comes through the relay. The key that the relay shows to all must be the one in it."""
        for wait_s in WAITS_S:
            sleep(wait_s)
            document = self._fetch_keys(address)
            key = read_keys(document)[0]
            try:
                verification = verify(address, policy, ask=partial(self._ask, key))
            except ChannelKeyUnknown:
                continue
            if policy.release.logs and not verification.holds(INSTANCE):
                said = f"The log names no process for {address}: its key could be for one user alone."
                hint = "Its operator puts it there with `cloister cloud announce`."
                raise VerificationFailed(said, checks=(INSTANCE,), hint=hint)
            if document == document_of(verification.channel_key):
                self._configuration = key
                for made in self._wires:
                    made.configuration = key
                return verification
        said = f"The relay {self.relay} shows another key for {address} than the node's evidence."
        hint = "A key for one user alone would tell users apart. Nothing was sent with it."
        raise VerificationFailed(said, checks=("oblivious keys",), hint=hint)

    def _ask(self, key: KeyConfiguration, node: HttpAddress, nonce: bytes, since: int) -> NodeEvidence:
        wire = BlockingTransport(ObliviousTransport(node, self.relay, key))
        return ask_for_evidence(node, nonce, since, wire)

    def _fetch_keys(self, node: HttpAddress) -> bytes:
        too_long = ChannelBroken("The relay's key configurations are too long.")
        headers, limit = (("Accept", ohttp.KEYS_TYPE),), MAX_DOCUMENT_BYTES
        try:
            found = exchange("GET", self.relay, node.resource, headers, b"", 2 * CONNECT_S, limit, too_long)
        except httpx2.RequestError:
            raise ServiceUnavailable(f"The relay {self.relay} does not answer.") from None
        if found[0].status_code != 200:
            hint = "It passes on to the nodes that its operator named (`cloister relay --to`), or the node is away."
            said = f"The relay {self.relay} shows no keys of {node} (HTTP {found[0].status_code})."
            raise ServiceUnavailable(said, hint=hint)
        return found[1]


def verified_node(url: str, policy: Policy, relay: str | None) -> VerifiedNode:
    return VerifiedNode(url, policy) if relay is None else RelayedNode(url, policy, relay)
