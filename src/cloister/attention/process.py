"""Vaults compute into this process's memory, each within its part; it answers the service, and clears on order."""

import os
import select
import socket

from cloister.compute.base import AttentionHost
from cloister.config import EngineSettings
from cloister.engine.runner import blocks_within
from cloister.errors import ProtocolError
from cloister.messages.controller_attention import AttentionReady, SlotCleared, ToAttention
from cloister.messages.controller_service import LinkSlot
from cloister.messages.frames import FrameReader, encode_frame
from cloister.messages.lifecycle import Ping, Pong
from cloister.models.decoder import Decoder

RECEIVE_BYTES = 4096


def prepare(decoder: Decoder, settings: EngineSettings, slots: int, mailbox: int) -> "Attention":
    """Takes all memory, before the seal. The decoder describes the model and computes nothing here."""
    blocks = blocks_within(decoder, settings.vault_kv_mib)
    host = decoder.device.attention_host(decoder, blocks, slots, mailbox, settings.link_deadline_ms)
    memory = host.export()  # before `start`: an export would wait for the kernels that wait to be asked
    host.start()
    return Attention(host, memory)


class Attention:
    def __init__(self, host: AttentionHost, memory: list[int]) -> None:
        self._host, self._memory, self._slots = host, memory, len(memory)

    @property
    def descriptors(self) -> set[int]:
        return {self._host.fileno()}

    def announce(self, control: socket.socket) -> None:
        for slot, memory in enumerate(self._memory):
            socket.send_fds(control, [encode_frame((LinkSlot(slot),))], [memory])
            os.close(memory)

    def run(self, control: socket.socket) -> None:
        try:
            self._run(control)
        except ConnectionError:
            return  # the controller hung up while this process was sending
        finally:
            self._host.leave()

    def _run(self, control: socket.socket) -> None:
        control.sendall(encode_frame((AttentionReady(),)))
        frames: FrameReader[ToAttention] = FrameReader(ToAttention)
        poll = select.poll()
        poll.register(control, select.POLLIN)
        poll.register(self._host.fileno(), select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self._host.fileno() in ready:
                return
            data = control.recv(RECEIVE_BYTES)
            if not data:
                return
            for order in frames.feed(data):
                if isinstance(order, Ping):
                    control.sendall(encode_frame((Pong(),)))
                    continue
                if order.slot >= self._slots:
                    raise ProtocolError("A slot is to be cleared that does not exist.")
                self._host.clear(order.slot)
                control.sendall(encode_frame((SlotCleared(order.slot),)))
