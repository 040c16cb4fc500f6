"""The made-up node behind an oblivious gateway resource of its own; and relays that do not behave."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import msgspec
import uvloop

from cloister.addresses import HttpAddress
from cloister.attest.evidence import NodeEvidence, bind
from cloister.channel import bhttp
from cloister.channel.ohttp import CHUNKED_RESPONSE_TYPE, GATEWAY_PATH, KEY_PROBLEM, KEYS_TYPE, PROBLEM_TYPE
from cloister.channel.ohttp.chunks import ChunkOpener, ChunkSealer
from cloister.channel.ohttp.encapsulation import (
    HEADER_BYTES,
    Form,
    Header,
    decapsulate,
    request_chain,
    response_chain,
    response_nonce,
)
from cloister.channel.ohttp.keys import document_of
from cloister.channel.sealing import SeenMessages
from cloister.config import GatewaySettings
from cloister.errors import ChannelBroken
from cloister.relay import run_relay
from tests.client.fake_node import FakeNode
from tests.client.http_server import Received, Reply, Server, http_server, reply


@dataclass
class ObliviousNode(FakeNode):
    inside: list[Received] = field(default_factory=list)
    seen_exchanges: SeenMessages = field(default_factory=SeenMessages)
    states: bytes | None = None
    """The hash of key configurations in its statement, where it is to lie."""

    async def handle(self, received: Received) -> Reply:
        if received.path != GATEWAY_PATH:
            return await super().handle(received)
        if received.method == "GET":
            return reply(200, document_of(self.channel_key.public), KEYS_TYPE)
        header = Header.decode(received.body)
        try:
            if header.key_id != self.channel_key.key_id[0]:
                raise ChannelBroken("Another key.")
            keys = self.channel_key.decapsulate(lambda private: decapsulate(private, header, Form.CHUNKED))
            opener = ChunkOpener(lambda begins: request_chain(header, keys), HEADER_BYTES)
            message = bhttp.decode(opener.feed(received.body) + opener.finish(), 1 << 24)
        except ChannelBroken:
            return reply(400, msgspec.json.encode({"type": KEY_PROBLEM}), PROBLEM_TYPE)
        self.seen_exchanges.add(header.enc)
        head = message.head
        assert isinstance(head, bhttp.RequestHead)
        inner = Received(head.method, head.path, dict(head.headers), message.content, b"")
        self.inside.append(inner)
        answer, nonce = await super().handle(inner), response_nonce(header)
        sealer = ChunkSealer(response_chain(header, keys, nonce), nonce)
        return Reply(200, CHUNKED_RESPONSE_TYPE, _chunks(answer, sealer))

    def evidence(self, nonce: bytes, since: int) -> NodeEvidence:
        made = super().evidence(nonce, since)
        configurations = hashlib.sha256(document_of(self.channel_key.public)).digest()
        said = msgspec.json.decode(made.statement) | {"oblivious": msgspec.to_builtins(self.states or configurations)}
        statement = msgspec.json.encode(said)
        bound = bind(nonce, made.channel_key, made.measurement, b"", statement)
        return msgspec.structs.replace(made, statement=statement, report=self.attester.attest(bound).report)


async def _chunks(answer: Reply, sealer: ChunkSealer) -> AsyncIterator[bytes]:
    fields = (("content-type", answer.content_type), *((name.lower(), each) for name, each in answer.headers.items()))
    yield sealer.seal(bhttp.begin(bhttp.ResponseHead(answer.status, fields)))
    async for piece in answer.body:
        yield sealer.seal(bhttp.chunk(piece))
    yield sealer.end(bhttp.end())


@contextmanager
def relayed(*nodes: str) -> Iterator[str]:
    """The real relay to these nodes, in a thread: its URL."""
    urls: list[str] = []
    ready = threading.Event()
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = []

    def listens(url: str) -> None:
        urls.append(url)
        ready.set()

    async def run() -> None:
        task = asyncio.ensure_future(run_relay([HttpAddress.parse(one) for one in nodes], SETTINGS, listens))
        running.append((asyncio.get_running_loop(), task))
        try:
            await task
        except asyncio.CancelledError:
            pass
        finally:
            ready.set()

    thread = threading.Thread(target=lambda: uvloop.run(run()))
    thread.start()
    ready.wait(20)
    try:
        yield urls[0]
    finally:
        loop, task = running[0]
        loop.call_soon_threadsafe(task.cancel)
        thread.join()


SETTINGS = GatewaySettings(port=0)
Change = Callable[[Received, Reply], Awaitable[Reply]]


@contextmanager
def between(relay: str, change: Change) -> Iterator[Server]:
    """A relay that is not honest: what it gets from a real one it changes."""
    import httpx

    async def handle(received: Received) -> Reply:
        headers = {name: each for name, each in received.headers.items() if name not in ("host", "connection")}
        async with httpx.AsyncClient(timeout=30) as client:
            url = relay + received.path
            answer = await client.request(received.method, url, headers=headers, content=received.body)
        copied = reply(answer.status_code, answer.content, answer.headers.get("content-type", ""))
        return await change(received, copied)

    with http_server(handle) as server:
        yield server


async def whole(answer: Reply) -> bytes:
    return b"".join([piece async for piece in answer.body])


def with_body(answer: Reply, data: bytes) -> Reply:
    return replace(reply(answer.status, data, answer.content_type), headers=answer.headers)
