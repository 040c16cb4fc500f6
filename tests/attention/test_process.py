"""The attention process's protocol, over a real socket, with a host that notes its calls."""

from __future__ import annotations

import os
import socket
import threading
from unittest.mock import MagicMock

import msgspec
import pytest

from cloister.attention.process import Attention, prepare
from cloister.compute.base import AttentionHost
from cloister.config import EngineSettings
from cloister.errors import ProtocolError
from cloister.messages.controller_attention import AttentionReady, ClearSlot, FromAttention, SlotCleared
from cloister.messages.controller_service import LinkSlot
from cloister.messages.frames import FrameReader, encode_frame


class NotingHost(AttentionHost):
    def __init__(self) -> None:
        self.noted: list[str | int] = []
        self.event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def export(self) -> list[int]:
        return [os.memfd_create(str(slot)) for slot in range(2)]

    def start(self) -> None:
        self.noted.append("started")

    def fileno(self) -> int:
        return self.event

    def clear(self, vault: int) -> None:
        self.noted.append(vault)

    def leave(self) -> None:
        self.noted.append("left")


class Running:
    def __init__(self) -> None:
        self.host, self.raised = NotingHost(), list[Exception]()
        self.ours, theirs = socket.socketpair()
        self.ours.settimeout(5)
        self._frames: FrameReader[msgspec.Struct] = FrameReader(FromAttention)
        attention = Attention(self.host, self.host.export())
        assert attention.descriptors == {self.host.event}
        attention.announce(theirs)
        self.thread = threading.Thread(target=self._run, args=(attention, theirs))
        self.thread.start()

    def _run(self, attention: Attention, control: socket.socket) -> None:
        with control:
            try:
                attention.run(control)
            except ProtocolError as error:
                self.raised.append(error)

    def handle(self, count: int) -> tuple[list[msgspec.Struct], list[int]]:
        messages: list[msgspec.Struct] = []
        descriptors: list[int] = []
        while len(messages) < count:
            data, fds, _, _ = socket.recv_fds(self.ours, 4096, 8)
            messages += self._frames.feed(data)
            descriptors += fds
        return messages, descriptors

    def send(self, message: msgspec.Struct) -> None:
        self.ours.sendall(encode_frame((message,)))

    def over(self) -> None:
        self.thread.join(5)
        assert not self.thread.is_alive() and self.host.noted[-1] == "left"
        self.ours.close()
        os.close(self.host.event)


def test_memory_is_handed_out_before_anything_waits_to_be_asked() -> None:
    """On a device an export waits for all that waits."""
    decoder, host = MagicMock(), MagicMock(spec=AttentionHost)
    decoder.cache_shape.block_bytes.return_value = 2**20
    decoder.device.attention_host.return_value = host
    settings = EngineSettings(vault_kv_mib=16)
    prepare(decoder, settings, 2, 5)
    assert [name for name, *_ in host.method_calls] == ["export", "start"]
    decoder.device.attention_host.assert_called_once_with(decoder, 16, 2, 5, settings.link_deadline_ms)


def test_it_lends_a_place_each_clears_what_it_is_told_and_leaves_when_hung_up_on() -> None:
    running = Running()
    messages, memories = running.handle(3)
    assert messages == [LinkSlot(0), LinkSlot(1), AttentionReady()] and len(memories) == 2
    running.send(ClearSlot(1))
    assert running.handle(1)[0] == [SlotCleared(1)] and running.host.noted == [1]
    running.ours.shutdown(socket.SHUT_RDWR)
    running.over()
    for memory in memories:
        os.close(memory)


@pytest.mark.parametrize("lost", [False, True])
def test_it_ends_on_nonsense_or_with_its_device(lost: bool) -> None:
    running = Running()
    _, memories = running.handle(3)
    if lost:
        os.eventfd_write(running.host.event, 1)
    else:
        running.send(ClearSlot(2))
    running.over()
    assert bool(running.raised) is not lost and running.host.noted == ["left"]
    for memory in memories:
        os.close(memory)
