"""An attention process: it lends memory to vaults, answers the service from it on the device, and clears it.

It hears of places alone. It prints nothing, and ends when the controller hangs up, or when the device is lost. What it
reads of a vault's are numbers on the device, which the kernels hold within the vault's own memory.
"""

from __future__ import annotations

import os
import select
import socket

from cloister.compute.base import AttentionHost
from cloister.config import EngineSettings
from cloister.engine.runner import blocks_within
from cloister.errors import ProtocolError
from cloister.messages.controller_attention import AttentionReady, PlaceCleared, ToAttention
from cloister.messages.controller_service import LinkPlace
from cloister.messages.frames import FrameReader, encode_frame
from cloister.messages.lifecycle import Ping, Pong
from cloister.messages.types import VERSION
from cloister.models.decoder import Decoder

RECEIVE_BYTES = 4096


def prepare(decoder: Decoder, settings: EngineSettings, places: int, mailbox: int) -> Attention:
    """Takes all memory, before the process is sealed. The decoder describes the model and computes nothing here."""
    blocks = blocks_within(decoder, settings.vault_kv_mib)
    holder = decoder.device.holder(decoder, blocks, places, mailbox, settings.link_deadline_ms)
    lent = holder.export()  # what waits to be asked would keep it waiting
    holder.start()
    return Attention(holder, lent)


class Attention:
    """`lent` is the memory of each place, until it is announced."""

    def __init__(self, holder: AttentionHost, lent: list[int]) -> None:
        self._holder, self._lent, self._places = holder, lent, len(lent)

    @property
    def descriptors(self) -> set[int]:
        """What must stay open when the process is sealed, beside its control socket."""
        return {self._holder.fileno()}

    def announce(self, control: socket.socket) -> None:
        """Before the seal, after which no descriptor can be sent: the memory of each place."""
        for place, memory in enumerate(self._lent):
            socket.send_fds(control, [encode_frame((LinkPlace(place),))], [memory])
            os.close(memory)

    def run(self, control: socket.socket) -> None:
        """Serve until the controller hangs up or the device is lost."""
        try:
            self._run(control)
        except ConnectionError:
            return  # hung up while we were speaking
        finally:
            self._holder.leave()

    def _run(self, control: socket.socket) -> None:
        control.sendall(encode_frame((AttentionReady(VERSION),)))
        frames: FrameReader[ToAttention] = FrameReader(ToAttention)
        poll = select.poll()
        poll.register(control, select.POLLIN)
        poll.register(self._holder.fileno(), select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self._holder.fileno() in ready:
                return
            data = control.recv(RECEIVE_BYTES)
            if not data:
                return
            for order in frames.feed(data):
                if isinstance(order, Ping):
                    control.sendall(encode_frame((Pong(),)))
                    continue
                if order.place >= self._places:
                    raise ProtocolError("A place is to be cleared that is not there.")
                self._holder.clear(order.place)
                control.sendall(encode_frame((PlaceCleared(order.place),)))
