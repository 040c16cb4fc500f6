"""A sealed answer, opened as it is read, from a node that does not behave."""

from collections.abc import AsyncIterator

import httpx2
import pytest

from cloister.channel.envelope import CONTENT_TYPE, InnerHead, Validity
from cloister.channel.stream import StreamOpener, StreamSealer
from cloister.client.message import SealedMessage
from cloister.client.sealed_transport import as_it_is, open_answer
from cloister.errors import ChannelBroken

KEY, ENC = bytes(range(32)), bytes(32)
REQUEST = httpx2.Request("POST", "http://node.example/v1/chat/completions")


class Wire(httpx2.AsyncByteStream):
    """An answer's pieces; an exception is a connection that breaks."""

    def __init__(self, *pieces: bytes | Exception) -> None:
        self._pieces, self.closed, self.read = pieces, False, 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            self.read += 1
            if isinstance(piece, Exception):
                raise piece
            yield piece

    async def aclose(self) -> None:
        self.closed = True


async def opened(wire: Wire, status: int = 200, kind: str = CONTENT_TYPE) -> httpx2.Response:
    outer = httpx2.Response(status, headers={"content-type": kind}, stream=wire, request=REQUEST)
    message = SealedMessage(b"envelope", StreamOpener(bytearray(KEY), ENC), Validity())
    return await open_answer(outer, message, as_it_is, REQUEST)


def sealed(*pieces: bytes) -> list[bytes]:
    sealer = StreamSealer(bytearray(KEY), ENC)
    return [sealer.head(InnerHead(200, ()).encode()), *map(sealer.data, pieces), sealer.end()]


async def test_every_cut_of_the_bytes_gives_the_same() -> None:
    data = b"".join(sealed(b"one ", b"two "))
    for cut in (1, 7, 100, 10_000):
        wire = Wire(*(data[at : at + cut] for at in range(0, len(data), cut)))
        answer = await opened(wire)
        assert answer.status_code == 200 and await answer.aread() == b"one two "
        assert wire.closed


async def test_the_last_event_waits_for_the_answers_end() -> None:
    frames = sealed(b"data: x\n\n", b"data: [DONE]\n\n")
    answer = await opened(Wire(b"".join(frames[:3]), frames[3]))
    assert [piece async for piece in answer.aiter_raw()] == [b"data: x\n\ndata: [DONE]\n\n"]
    cut = await opened(Wire(*frames[:3]))
    heard = []
    with pytest.raises(ChannelBroken):
        async for piece in cut.aiter_raw():
            heard.append(piece)
    assert heard == [b"data: x\n\n"]


@pytest.mark.parametrize("broken", [httpx2.ReadError("cut"), httpx2.RemoteProtocolError("cut")])
async def test_an_answer_that_is_cut_off_breaks_the_channel(broken: Exception) -> None:
    wire = Wire(sealed(b"x")[0], broken)
    answer = await opened(wire)
    with pytest.raises(ChannelBroken, match="cut off"):
        await answer.aread()
    assert wire.closed


@pytest.mark.parametrize(
    ("status", "kind", "pieces"),
    [
        (200, CONTENT_TYPE, ()),
        (200, CONTENT_TYPE, (b"x" * 600,)),
        (200, CONTENT_TYPE, (httpx2.ReadError("cut"),)),
        (200, "application/json", (b"{}",)),
        (302, "text/html", (b"",)),
    ],
)
async def test_what_is_no_sealed_answer_breaks_the_channel(
    status: int, kind: str, pieces: tuple[bytes | Exception, ...]
) -> None:
    wire = Wire(*pieces)
    with pytest.raises(ChannelBroken):
        await opened(wire, status, kind)
    assert wire.closed


async def test_an_answer_that_is_closed_early_closes_the_connection() -> None:
    frames = sealed(b"one ", b"two ")
    wire = Wire(*frames)
    answer = await opened(wire)
    async for _ in answer.aiter_raw():
        break
    await answer.aclose()
    assert wire.closed and wire.read < len(frames)
