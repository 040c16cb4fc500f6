"""The proxy's connection to a node, against a node that does not behave."""

import asyncio
from collections.abc import Iterable

import pytest

from cloister.addresses import HttpAddress
from cloister.channel.envelope import InnerHead
from cloister.channel.stream import StreamOpener, StreamSealer
from cloister.channel.validity import Validity
from cloister.client.message import SealedMessage
from cloister.client.upstream import NeverAnswered, Upstream, UpstreamPool
from cloister.errors import ChannelBroken, CloisterError, ServiceUnavailable

ADDRESS = HttpAddress.parse("http://node.example/below")
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/cloister-sealed\r\nTransfer-Encoding: chunked\r\n\r\n"
KEY, ENC = bytes(range(32)), bytes(32)


class Wire(asyncio.Transport):
    """What was written, and whether it was dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.aborted = False

    def writelines(self, pieces: Iterable[bytes]) -> None:  # type: ignore[override]
        self.written += b"".join(pieces)

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted


class Listening:
    def __init__(self) -> None:
        self.head: InnerHead | None = None
        self.heard: list[tuple[bytes, bool]] = []

    def begin(self, head: InnerHead) -> None:
        self.head = head

    def opened(self, data: bytes, ended: bool) -> None:
        self.heard.append((data, ended))


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Exchange:
    """An exchange under way."""

    def __init__(self) -> None:
        self.wire = Wire()
        self.listener = Listening()
        self.upstream = Upstream(ADDRESS)
        self.upstream.connection_made(self.wire)
        self.sealer = StreamSealer(bytearray(KEY), ENC)
        message = SealedMessage(b"envelope", StreamOpener(bytearray(KEY), ENC), Validity())
        self.task = asyncio.ensure_future(self.upstream.exchange(message, self.listener))

    def sealed(self, *pieces: bytes) -> list[bytes]:
        head = self.sealer.head(InnerHead(200, ()).encode())
        return [head, *(self.sealer.data(piece) for piece in pieces), self.sealer.end()]

    async def ends_with(self, *received: bytes) -> CloisterError:
        await asyncio.sleep(0)
        for data in received:
            self.upstream.data_received(data)
        with pytest.raises(CloisterError) as raised:
            await self.task
        return raised.value


async def test_what_one_read_brought_is_passed_on_in_one_go() -> None:
    exchange = Exchange()
    await asyncio.sleep(0)
    assert exchange.wire.written.startswith(b"POST /below/v1/sealed HTTP/1.1\r\nHost: node.example:80\r\n")
    assert exchange.wire.written.endswith(b"Content-Length: 8\r\n\r\nenvelope")
    frames = exchange.sealed(b"one ", b"two ", b"three")
    exchange.upstream.data_received(HEAD + chunk(frames[0]) + chunk(frames[1]) + chunk(frames[2]))
    assert exchange.listener.head == InnerHead(200, ()) and exchange.listener.heard == [(b"one two ", False)]
    exchange.upstream.data_received(chunk(frames[3] + frames[4]) + b"0\r\n\r\n")
    assert await exchange.task is None
    assert exchange.listener.heard[1:] == [(b"three", True)] and exchange.upstream.usable


async def test_every_cut_of_the_bytes_gives_the_same() -> None:
    for cut in (1, 7, 100, 1000):
        exchange = Exchange()
        await asyncio.sleep(0)
        data = HEAD + b"".join(chunk(frame) for frame in exchange.sealed(b"one ", b"two ")) + b"0\r\n\r\n"
        for at in range(0, len(data), cut):
            exchange.upstream.data_received(data[at : at + cut])
        assert await exchange.task is None
        assert b"".join(piece for piece, _ in exchange.listener.heard) == b"one two "
        assert exchange.listener.heard[-1][1] and exchange.upstream.usable


async def test_the_last_event_waits_for_the_answers_end() -> None:
    exchange = Exchange()
    await asyncio.sleep(0)
    frames = exchange.sealed(b"data: x\n\n", b"data: [DONE]\n\n")
    exchange.upstream.data_received(HEAD + b"".join(chunk(frame) for frame in frames[:3]))
    assert not exchange.listener.heard
    exchange.upstream.data_received(chunk(frames[3]) + b"0\r\n\r\n")
    await exchange.task
    assert exchange.listener.heard == [(b"data: x\n\ndata: [DONE]\n\n", True)]


async def test_a_connection_whose_http_does_not_end_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloister.client.upstream._END_S", 0.01)
    exchange = Exchange()
    await asyncio.sleep(0)
    exchange.upstream.data_received(HEAD + b"".join(chunk(frame) for frame in exchange.sealed(b"x")))
    assert await exchange.task is None and exchange.listener.heard == [(b"x", True)]
    assert exchange.wire.aborted and not exchange.upstream.usable


async def test_a_server_that_closes_after_each_answer_is_believed() -> None:
    exchange = Exchange()
    await asyncio.sleep(0)
    head = HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    exchange.upstream.data_received(head + b"".join(chunk(each) for each in exchange.sealed(b"x")) + b"0\r\n\r\n")
    assert await exchange.task is None and not exchange.upstream.usable


@pytest.mark.parametrize(
    "received",
    [
        [b"SSH-2.0\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\n" + b"A: " + b"x" * 70_000],
        [b"HTTP/1.1 200 OK\r\nA: ", *[b"x" * 1000] * 100],
        [b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 30_000],
        [HEAD + b"zz\r\n"],
        [HEAD + chunk(b"x" * 600)],
        [HEAD + b"0\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"],
        [b"HTTP/1.1 302 Found\r\nLocation: http://evil.example\r\nContent-Length: 0\r\n\r\n"],
    ],
)
async def test_what_is_no_sealed_answer_breaks_the_channel(received: list[bytes]) -> None:
    exchange = Exchange()
    assert isinstance(await exchange.ends_with(*received), ChannelBroken)
    assert not exchange.listener.heard and exchange.listener.head is None


async def test_a_connection_lost_is_told_apart_by_what_came_before() -> None:
    exchange = Exchange()
    await asyncio.sleep(0)
    exchange.upstream.connection_lost(None)
    with pytest.raises(NeverAnswered):
        await exchange.task
    exchange = Exchange()
    await asyncio.sleep(0)
    exchange.upstream.data_received(HEAD + chunk(exchange.sealed(b"x")[0]))
    exchange.upstream.connection_lost(None)
    with pytest.raises(ChannelBroken, match="cut off"):
        await exchange.task


async def test_who_stops_waiting_drops_the_connection() -> None:
    exchange = Exchange()
    await asyncio.sleep(0)
    exchange.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exchange.task
    assert exchange.wire.aborted


async def test_what_nobody_asked_for_drops_the_connection() -> None:
    upstream, wire = Upstream(ADDRESS), Wire()
    upstream.connection_made(wire)
    upstream.data_received(b"HTTP/1.1 200 OK\r\n\r\n")
    assert wire.aborted


async def test_nobody_there_is_said_so() -> None:
    with pytest.raises(ServiceUnavailable):
        await UpstreamPool(HttpAddress.parse("http://127.0.0.1:9")).take()
