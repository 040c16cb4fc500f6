"""The blocking endpoint over a real socket: messages in order, descriptors beside them, an end that is noticed."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import msgspec
import pytest

from cloister.errors import ProtocolError
from cloister.messages.frames import encode_frame
from cloister.messages.generation import AskStats, Cancel
from cloister.process.blocking import MAX_DESCRIPTORS, BlockingEndpoint

Said = AskStats | Cancel


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, BlockingEndpoint[Said]]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        endpoint: BlockingEndpoint[Said] = BlockingEndpoint(theirs, Said)
        yield ours, endpoint
        endpoint.close()


def say(ours: socket.socket, *messages: msgspec.Struct) -> None:
    ours.sendall(encode_frame(messages))


def test_messages_come_one_by_one_or_together_and_then_an_end(
    pair: tuple[socket.socket, BlockingEndpoint[Said]],
) -> None:
    ours, endpoint = pair
    assert endpoint.receive(wait=False) == []
    say(ours, Cancel(1), Cancel(2))
    assert endpoint.receive() == [Cancel(1), Cancel(2)]
    say(ours, Cancel(3), Cancel(4))
    assert (endpoint.next(), endpoint.next()) == (Cancel(3), Cancel(4))
    ours.shutdown(socket.SHUT_WR)
    assert endpoint.next() is None and endpoint.receive(wait=False) is None


def test_descriptors_are_not_inherited_and_cannot_be_taken_twice(
    pair: tuple[socket.socket, BlockingEndpoint[Said]],
) -> None:
    ours, endpoint = pair
    sender: BlockingEndpoint[Said] = BlockingEndpoint(ours, Said)
    file = os.memfd_create("file")
    os.write(file, b"content")
    sender.send(Cancel(1), file, file)
    os.close(file)
    assert endpoint.next() == Cancel(1)
    [first] = endpoint.take_descriptors(1)
    assert os.pread(first, 10, 0) == b"content" and not os.get_inheritable(first)
    os.close(first)
    with pytest.raises(ProtocolError):
        endpoint.take_descriptors(2)


def test_more_descriptors_than_anybody_announces_are_refused(
    pair: tuple[socket.socket, BlockingEndpoint[Said]],
) -> None:
    ours, endpoint = pair
    sender: BlockingEndpoint[Said] = BlockingEndpoint(ours, Said)
    sender.send(Cancel(1), *[ours.fileno()] * MAX_DESCRIPTORS)
    sender.send(Cancel(1), ours.fileno())
    assert endpoint.next() == Cancel(1)
    with pytest.raises(ProtocolError):
        endpoint.next()


def test_what_is_watched_is_told_before_the_next_message(pair: tuple[socket.socket, BlockingEndpoint[Said]]) -> None:
    ours, endpoint = pair
    event = os.eventfd(1)
    assert endpoint.next_or_readable({event}) == {event}
    os.eventfd_read(event)
    say(ours, Cancel(1))
    assert endpoint.next_or_readable({event}) == Cancel(1)
    ours.shutdown(socket.SHUT_WR)
    assert endpoint.next_or_readable({event}) is None
    os.close(event)


def test_a_malformed_frame_is_refused(pair: tuple[socket.socket, BlockingEndpoint[Said]]) -> None:
    ours, endpoint = pair
    ours.sendall(b"\xff" * 8)
    with pytest.raises(ProtocolError):
        endpoint.next()
