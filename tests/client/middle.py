"""Who stands between a client and a node: a real HTTP server that passes everything on, but for what it was told to do.

`Middle` hides nothing it saw, so that a test can look for what must not be there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx2

from tests.client.http_server import Received, Reply, Server, http_server

Next = Callable[[Received], Awaitable[Reply]]
Tricks = Callable[[Received, Next], Awaitable[Reply]]


@dataclass
class Middle:
    """`trick` decides what becomes of a request; None passes it on."""

    node_url: str
    trick: Tricks | None = None
    server: Server = field(default_factory=Server)
    passed_on: int = 0

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def saw(self) -> bytes:
        return b"\n".join(received.raw for received in self.server.received)

    @property
    def sealed_seen(self) -> list[Received]:
        return [received for received in self.server.received if received.path.endswith("/v1/sealed")]

    async def handle(self, received: Received) -> Reply:
        if self.trick is not None:
            return await self.trick(received, self.forward)
        return await self.forward(received)

    async def forward(self, received: Received) -> Reply:
        self.passed_on += 1
        client = httpx2.AsyncClient(trust_env=False, timeout=30)
        headers = {name: value for name, value in received.headers.items() if name not in ("host", "content-length")}
        request = client.build_request(
            received.method, self.node_url + received.path, headers=headers, content=received.body
        )
        response = await client.send(request, stream=True)
        kept = {name: value for name, value in response.headers.items() if name == "retry-after"}
        return Reply(response.status_code, response.headers["content-type"], _pieces(client, response), kept)


async def _pieces(client: httpx2.AsyncClient, response: httpx2.Response) -> AsyncIterator[bytes]:
    try:
        async for piece in response.aiter_raw():
            yield piece
    finally:
        await response.aclose()
        await client.aclose()


async def whole(reply: Reply) -> bytes:
    return b"".join([piece async for piece in reply.body])


@contextmanager
def standing_between(node_url: str, trick: Tricks | None = None) -> Iterator[Middle]:
    middle = Middle(node_url, trick)
    with http_server(middle.handle) as server:
        middle.server = server
        yield middle
