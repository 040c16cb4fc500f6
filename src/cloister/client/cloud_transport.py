"""Requests to a cloud: each pays with a token, and goes to the node that its token names. No party chooses the node.

Under the seal, too, requests of all users have one form. A request whose node is away goes once more, with a token that
names another node, never after a byte of an answer came. It may so be computed twice. That is acceptable: nodes forget
requests, and the first token is gone; but two nodes that compare can tell that they got one request. At `obfuscated`
none that may have been sent goes again: two nodes' made-up prompts differ, and would show which one is real.

The next node is the hash of the next token's nonce and of nothing else. No memory of nodes that were away is kept: a
relay that refuses in nodes' names could steer by it. With one more try, a bad one of N nodes gets 2/N at most.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx2
import msgspec

from cloister.access.cloud import CloudNode
from cloister.access.tokens import Token, authorization
from cloister.addresses import HttpAddress
from cloister.attest.policy import Policy
from cloister.client.message import Refusal, is_obfuscated
from cloister.client.oblivious import verified_node
from cloister.client.sealed_transport import CUT, AsyncSealedTransport, OpenedStream, Raising, as_it_is, refused
from cloister.client.tokens import TokenSource
from cloister.client.verification import VerifiedNode
from cloister.errors import (
    ChannelBroken,
    CloisterError,
    InvalidRequest,
    QueueFull,
    ServiceUnavailable,
    SetupError,
    VerificationFailed,
)
from cloister.request_fields import HEADER_PREFIX, SESSION_HEADER, UNUSED, refuse_repeated_names

SPENT = "The token that paid for it is gone: trying again costs another one."
_NOT_CONNECTED = (httpx2.ConnectError, httpx2.ConnectTimeout)
_RETRY_COUNT = "x-stainless-retry-count"  # of OpenAI's SDKs, which try again by themselves
_LINKING = ("session", "cache_salt")


@dataclass(frozen=True)
class CloudAccess:
    """How a client reaches a cloud. `url`: one of its nodes, by which programs call all of them."""

    url: str
    source: TokenSource
    policy: Policy
    relay: str | None = None

    @property
    def address(self) -> HttpAddress:
        return HttpAddress.parse(self.url)

    def check(self) -> None:
        if self.address not in {HttpAddress.parse(node.url) for node in self.source.cloud.nodes}:
            raise SetupError("The URL is no node of the cloud.", hint="Give one of the nodes of its list.")

    def node(self, place: CloudNode) -> VerifiedNode:
        """Verified, and following the list by which this client chose it."""
        node = verified_node(place.url, self.policy, self.relay)
        self.check_list(node)
        return node

    def check_list(self, node: VerifiedNode) -> None:
        if node.verification.verdict.claims.get("cloud") != self.source.cloud.digest.hex():
            said = f"{node.address} follows another list of nodes and token keys than this client."
            hint = "Take the list that the log has now. A list for one user alone would tell users apart."
            raise VerificationFailed(said, checks=("cloud list",), hint=hint)


class _Away(Exception):
    """The node could not be reached, or no byte of an answer came."""

    def __init__(self, outcome: httpx2.Response | Exception) -> None:
        self._outcome = outcome

    def outcome(self) -> httpx2.Response:
        """What the caller gets if the request does not go again."""
        if isinstance(self._outcome, Exception):
            raise self._outcome from None
        return self._outcome


_Written = tuple[list[tuple[bytes, bytes]], bytes]


class CloudTransport(httpx2.AsyncBaseTransport):
    def __init__(self, access: CloudAccess, *, raising: Raising = as_it_is) -> None:
        access.check()
        self._access, self._raising = access, raising
        self._nodes: dict[str, tuple[VerifiedNode, AsyncSealedTransport]] = {}
        self._verifying: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await request.aread()
        try:
            written = uniform(request.headers.raw, request.content)
            token, place = await asyncio.to_thread(self._access.source.take)
        except (InvalidRequest, QueueFull) as wrong:
            return refused(Refusal.of(wrong), request)
        except ServiceUnavailable as gone:
            raise httpx2.ConnectError(str(gone), request=request) from None
        except CloisterError as error:
            raise self._raising(error, request) from None
        # A program that tries again by itself makes no second failover: tries add up, and do not multiply.
        again = request.headers.get(_RETRY_COUNT, "0") == "0"
        return await self._send(request, written, token, place, again=again)

    async def _send(
        self, request: httpx2.Request, written: _Written, token: Token, place: CloudNode, *, again: bool
    ) -> httpx2.Response:
        try:
            return await self._try(request, written, token, place)
        except _Away as away:
            other = await asyncio.to_thread(self._elsewhere, place) if again else None
            if other is None:
                return away.outcome()
        return await self._send(request, written, *other, again=False)

    async def _try(self, request: httpx2.Request, written: _Written, token: Token, place: CloudNode) -> httpx2.Response:
        try:
            transport = await self._transport(place)
        except ServiceUnavailable as gone:
            raise _Away(httpx2.ConnectError(str(gone), request=request)) from None
        except CloisterError as error:
            raise self._raising(error, request) from None
        headers = [*written[0], (b"Authorization", authorization(token).encode())]
        url = HttpAddress.parse(place.url).url(self._access.address.endpoint(request.url.raw_path.decode("ascii")))
        moved = httpx2.Request(request.method, url, headers=headers, content=written[1], extensions=request.extensions)
        again = not is_obfuscated(request.headers.multi_items(), request.content)
        try:
            answer = await transport.handle_async_request(moved)
        except (*_NOT_CONNECTED, httpx2.PoolTimeout) as away:
            raise (_Away(away) if again and isinstance(away, _NOT_CONNECTED) else away) from None
        except httpx2.RequestError as lost:
            unanswered = ChannelBroken(f"No answer came to the request ({type(lost).__name__}).")
            raised = self._lost(unanswered, request)
            raise (_Away(raised) if again and isinstance(lost, CUT) else raised) from None
        if isinstance(answer.stream, OpenedStream):
            return answer
        answer = _refusal(answer)
        if again and answer.status_code == 503 and "retry-after" in answer.headers:
            raise _Away(answer)  # it drains or starts, or its relay cannot reach it
        return answer

    def _elsewhere(self, place: CloudNode) -> tuple[Token, CloudNode] | None:
        with suppress(CloisterError):  # no token is left: then the first outcome stands
            return self._access.source.take_elsewhere(place)
        return None

    def _lost(self, error: CloisterError, request: httpx2.Request) -> Exception:
        """What went wrong after the token left."""
        error.hint = f"{error.hint} {SPENT}" if error.hint else SPENT
        return self._raising(error, request)

    async def aclose(self) -> None:
        for _, transport in self._nodes.values():
            await transport.aclose()

    async def _transport(self, place: CloudNode) -> AsyncSealedTransport:
        async with self._verifying[place.name]:
            if place.name not in self._nodes:
                node = await asyncio.to_thread(self._access.node, place)
                self._nodes[place.name] = node, AsyncSealedTransport(node, raising=self._lost)
            node, transport = self._nodes[place.name]
        await node.verified_beside()
        self._access.check_list(node)
        return transport


def uniform(headers: Iterable[tuple[bytes, bytes]], body: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """What is part of the request, written in one way: programs, machines and settings do not show."""
    named = [(name.lower(), value) for name, value in headers]
    kept = [pair for pair in named if pair[0] == b"content-type" or pair[0].startswith(HEADER_PREFIX.encode())]
    said = {SESSION_HEADER} if SESSION_HEADER.lower().encode() in dict(kept) else set()
    if body:
        refuse_repeated_names(body)
        try:
            fields = msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.MsgspecError:
            raise InvalidRequest("The body is not a JSON object.") from None
        said |= {name for name in _LINKING if fields.get(name) is not None}
        body = msgspec.json.encode({name: fields[name] for name in fields if name not in UNUSED}, order="sorted")
        kept = [(name, b"application/json" if name == b"content-type" else value) for name, value in kept]
    for name in sorted(said):
        hint = "Leave it out, or send an API key to a node."
        raise InvalidRequest(f"{name} would link requests that tokens keep apart.", param=name, hint=hint)
    return sorted(kept), body


def _refusal(answer: httpx2.Response) -> httpx2.Response:
    """A refusal in the clear, which does not show whether the token was taken."""
    error = msgspec.json.decode(answer.content)["error"]
    error["message"] += f" {SPENT}"
    headers = [(name, value) for name, value in answer.headers.multi_items() if name != "content-length"]
    content = msgspec.json.encode({"error": error})
    return httpx2.Response(answer.status_code, headers=headers, content=content, request=answer.request)
