"""Frames and descriptors over a real socket."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import pytest

from cloister.errors import ProtocolError
from cloister.messages.controller_service import AttachLink, ToSealedService
from cloister.messages.frames import encode_frame
from cloister.messages.generation import AskStats, Cancel
from cloister.process import endpoint as module
from cloister.process.endpoint import Endpoint


class End:
    def __init__(self, end: socket.socket) -> None:
        self.got: list[Any] = []
        self.ended = asyncio.Event()
        self.channel = Endpoint(end, ToSealedService, self.got.append, self.ended.set)

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(5):
            while len(self.got) < count:
                await asyncio.sleep(0.001)


@pytest.fixture
async def ends() -> Any:
    one, two = (End(end) for end in socket.socketpair())
    yield one, two
    one.channel.close()
    two.channel.close()


async def test_messages_and_descriptors_arrive_in_order_however_full_the_socket(ends: tuple[End, End]) -> None:
    one, two = ends
    files = [os.memfd_create(str(number)) for number in range(20)]
    for number, file in enumerate(files):
        os.write(file, str(number).encode())
        one.channel.send(Cancel(number))
        one.channel.send(AttachLink(number), (file,))
        os.close(file)  # the sender's copy is not needed any more
        for _ in range(500):
            one.channel.send(AskStats())
    await two.wait_for(20 * 502)
    links = [message for message in two.got if isinstance(message, AttachLink)]
    assert [message.link for message in links] == list(range(20))
    for number in range(20):
        received = two.channel.take_descriptor()
        assert os.pread(received, 10, 0) == str(number).encode()
        os.close(received)
    with pytest.raises(ProtocolError):
        two.channel.take_descriptor()


async def test_what_is_gathered_goes_out_as_one_frame_and_before_what_is_sent_after_it() -> None:
    ours, theirs = socket.socketpair()
    end = End(ours)
    for number in range(3):
        end.channel.send_soon(Cancel(number))
    end.channel.send(AskStats())
    end.channel.send_soon(Cancel(3))
    end.channel.close()  # nothing that was said is lost
    end.channel.send_soon(Cancel(4))
    await asyncio.sleep(0)
    expected = [
        encode_frame(tuple(Cancel(n) for n in range(3))),
        encode_frame((AskStats(),)),
        encode_frame((Cancel(3),)),
    ]
    assert theirs.recv(1 << 16) == b"".join(expected)
    theirs.close()


async def test_a_hang_up_is_told_once_and_a_close_of_ones_own_never(ends: tuple[End, End]) -> None:
    one, two = ends
    one.channel.close()
    one.channel.send(AskStats())
    await asyncio.wait_for(two.ended.wait(), 5)
    assert not one.ended.is_set() and not two.channel.open


@pytest.mark.parametrize("bytes_", [b"\xff" * 8, encode_frame((AskStats(),))[:-1] + b"\xc1"])
async def test_a_malformed_frame_ends_the_channel(bytes_: bytes) -> None:
    ours, theirs = socket.socketpair()
    end = End(ours)
    theirs.sendall(bytes_)
    await asyncio.wait_for(end.ended.wait(), 5)
    assert not end.got
    theirs.close()


async def test_a_peer_that_reads_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNSENT_BYTES", 1 << 16)
    ours, theirs = socket.socketpair()
    end = End(ours)
    for _ in range(100_000):
        end.channel.send(AskStats())
    await asyncio.wait_for(end.ended.wait(), 5)
    theirs.close()
