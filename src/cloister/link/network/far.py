"""The far bridge: `python -m cloister.link.network.far FD`, started by an outpost, one for each connection.

It finds out who connects before anything else happens. Then it plays the service on the link of a fresh vault, and the
controller on its control socket: it passes the conversation on, but for the floor, which is the outpost's to give.
"""

from __future__ import annotations

import select
import socket
from contextlib import suppress
from queue import SimpleQueue
from typing import TypeAlias

import msgspec

from cloister.errors import ProtocolError
from cloister.link.network.confine import confine, run_bridge
from cloister.link.network.hail import shape_of
from cloister.link.network.records import CONTROL, CONTROL_BYTES, HAIL, KIND, QUESTION, kind_of, longest_record
from cloister.link.network.secure import CutOff, SecureChannel, meet
from cloister.link.network.sides import ServiceSide
from cloister.messages.bridge import Admitted, Hail, Lend, Receive, ToFar, Unwelcome, Welcome
from cloister.messages.frames import FrameReader, encode_frame
from cloister.messages.vault import FloorDone, FromVault, TakeFloor, ToVault, WantFloor
from cloister.process.blocking import BlockingEndpoint

RECEIVE_BYTES = 1 << 18
MAX_UNSENT_FRAMES = 4096

Order: TypeAlias = Receive | Lend | TakeFloor


def _serve(outpost: socket.socket) -> None:
    line: BlockingEndpoint[Order] = BlockingEndpoint(outpost, ToFar)
    order = line.next()
    if not isinstance(order, Receive):
        return
    [descriptor] = line.take_descriptors(1)
    connection = socket.socket(fileno=descriptor)
    shape = shape_of(order.hail)
    channel = meet(connection, order.secret, "far", longest_record(shape))
    _check(channel, order.hail)
    line.send(Admitted())
    if not isinstance(line.next(), Lend):
        return
    question, answer, control = line.take_descriptors(3)
    vault = socket.socket(fileno=control)
    bridge = Far(outpost, vault, ServiceSide(shape, question, answer), channel)
    channel.send(KIND.pack(HAIL), msgspec.msgpack.encode(Welcome()))
    loops = (bridge.from_near, bridge.from_vault, bridge.to_vault)
    keep = (outpost.fileno(), connection.fileno(), vault.fileno())
    confine(loops, keep, allow_degraded=order.allow_degraded)


def _check(channel: SecureChannel, ours: Hail) -> None:
    """Another model, or another shape of the same: the answers would be wrong, and nobody would notice."""
    record = channel.receive()
    if record is None or kind_of(record) != HAIL:
        raise ProtocolError("The server did not say what it wants.")
    try:
        theirs = msgspec.msgpack.decode(record[KIND.size :], type=Hail)
    except msgspec.MsgspecError:
        raise ProtocolError("The server's greeting does not decode.") from None
    if theirs == ours:
        return
    why = "it runs another version of Cloister." if theirs.version != ours.version else (
        "it serves another model, or the same in another precision or format."
    )  # fmt: skip
    channel.send(KIND.pack(HAIL), msgspec.msgpack.encode(Unwelcome(why)))
    channel.end()
    raise ProtocolError("A server wanted another model or version than is here.")


class Far:
    """Three loops, a thread each; when one ends, all do."""

    def __init__(self, outpost: socket.socket, vault: socket.socket, side: ServiceSide, channel: SecureChannel) -> None:
        self._outpost = outpost
        self._vault = vault
        self._side = side
        self._channel = channel
        self._unsent: SimpleQueue[bytes] = SimpleQueue()

    def from_near(self) -> None:
        """Service and controller → vault, until the other side ends. A server kills what it needs no longer, so a
        line that is cut is how most sessions end, and worth no word."""
        with suppress(CutOff):
            self._take_records()

    def _take_records(self) -> None:
        frames: FrameReader[msgspec.Struct] = FrameReader(ToVault)
        while (record := self._channel.receive()) is not None:
            kind = kind_of(record)
            if kind == QUESTION:
                # A vault that is silent must not hide from us that nobody waits for it any more.
                answer = self._side.ask(record, self._channel.hung_up)
                if answer is None:
                    return
                self._channel.send(*answer)
            elif kind == CONTROL:
                for message in frames.feed(bytes(record[KIND.size :])):
                    if isinstance(message, TakeFloor):
                        raise ProtocolError("The floor of an outpost is not the server's to give.")
                    self._tell_vault(message)
                self._channel.forget()
            else:
                raise ProtocolError("A record came that is not for this side.")

    def to_vault(self) -> None:
        """What a busy vault has not read yet waits here, so that answers to the service do not."""
        while True:
            self._vault.sendall(self._unsent.get())

    def from_vault(self) -> None:
        """Vault → controller, and the floor between vault and outpost, until either hangs up."""
        said: FrameReader[msgspec.Struct] = FrameReader(FromVault)
        granted: FrameReader[TakeFloor] = FrameReader(TakeFloor)
        poll = select.poll()
        poll.register(self._vault, select.POLLIN)
        poll.register(self._outpost, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                source = self._vault if descriptor == self._vault.fileno() else self._outpost
                data = source.recv(RECEIVE_BYTES)
                if not data:
                    return self._channel.end()
                if source is self._outpost:
                    for grant in granted.feed(data):
                        self._tell_vault(grant)
                    continue
                for message in said.feed(data):
                    frame = encode_frame((message,))
                    if isinstance(message, WantFloor | FloorDone):
                        self._outpost.sendall(frame)
                    else:
                        self._tell_controller(frame)

    def _tell_vault(self, message: msgspec.Struct) -> None:
        if self._unsent.qsize() > MAX_UNSENT_FRAMES:
            raise ProtocolError("A vault does not read what it is sent.")
        self._unsent.put(encode_frame((message,)))

    def _tell_controller(self, frame: bytes) -> None:
        mark = KIND.pack(CONTROL)
        for at in range(0, len(frame), CONTROL_BYTES):
            self._channel.send(mark, memoryview(frame)[at : at + CONTROL_BYTES])


if __name__ == "__main__":
    run_bridge("bridge-far", _serve)
