"""Requests to a cloud: each pays with a token, and goes to the node that its token names. No party chooses the node.

Under the seal, too, requests of all users have one form. A request is not sent again by itself once its token left.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import httpx2
import msgspec

from cloister.access.cloud import CloudNode
from cloister.access.tokens import authorization
from cloister.addresses import HttpAddress
from cloister.attest.policy import Policy
from cloister.client.message import Refusal
from cloister.client.oblivious import verified_node
from cloister.client.sealed_transport import AsyncSealedTransport, OpenedStream, Raising, as_it_is, refused
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
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
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


class CloudTransport(httpx2.AsyncBaseTransport):
    """A request that is tried again takes another token, and so perhaps another node."""

    def __init__(self, access: CloudAccess, *, raising: Raising = as_it_is) -> None:
        access.check()
        self._access, self._raising = access, raising
        self._nodes: dict[str, tuple[VerifiedNode, AsyncSealedTransport]] = {}
        self._verifying = asyncio.Lock()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await request.aread()
        try:
            headers, content = uniform(request.headers.raw, request.content)
            token, place = await asyncio.to_thread(self._access.source.take)
            transport = await self._transport(place)
        except (InvalidRequest, QueueFull) as wrong:
            return refused(Refusal.of(wrong), request)
        except ServiceUnavailable as gone:
            raise httpx2.ConnectError(str(gone), request=request) from None
        except CloisterError as error:
            raise self._raising(error, request) from None
        headers.append((b"Authorization", authorization(token).encode()))
        url = HttpAddress.parse(place.url).url(self._access.address.endpoint(request.url.raw_path.decode("ascii")))
        moved = httpx2.Request(request.method, url, headers=headers, content=content, extensions=request.extensions)
        try:
            answer = await transport.handle_async_request(moved)
        except _NOT_SENT:
            raise
        except httpx2.RequestError as lost:
            unanswered = ChannelBroken(f"No answer came to the request ({type(lost).__name__}).")
            raise self._lost(unanswered, request) from None
        return answer if isinstance(answer.stream, OpenedStream) else _refusal(answer)

    def _lost(self, error: CloisterError, request: httpx2.Request) -> Exception:
        """What went wrong after the token left."""
        error.hint = f"{error.hint} {SPENT}" if error.hint else SPENT
        return self._raising(error, request)

    async def aclose(self) -> None:
        for _, transport in self._nodes.values():
            await transport.aclose()

    async def _transport(self, place: CloudNode) -> AsyncSealedTransport:
        async with self._verifying:
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
