"""The near bridge: `python -m cloister.link.network.near FD`, started by the controller, one for each remote vault.

It plays the vault on a local link and passes the vault's conversation with the controller through, unread. Prompts
pass it on their way; it keeps none, and overwrites the buffers that held one.
"""

from __future__ import annotations

import socket

import msgspec

from cloister.errors import ProtocolError, VaultLost
from cloister.link.network.address import Address
from cloister.link.network.confine import confine, run_bridge
from cloister.link.network.hail import shape_of
from cloister.link.network.records import ANSWER, CONTROL, CONTROL_BYTES, HAIL, KIND, kind_of, longest_record
from cloister.link.network.secure import SecureChannel, meet
from cloister.link.network.sides import VaultSide
from cloister.link.shape import LinkShape
from cloister.messages.bridge import Cross, ToNear, Unwelcome, Welcome
from cloister.process.blocking import BlockingEndpoint

CONNECT_S = 10.0
_NO_BYTES = bytes(CONTROL_BYTES)


def _serve(control: socket.socket) -> None:
    line: BlockingEndpoint[Cross] = BlockingEndpoint(control, ToNear)
    order = line.next()
    if order is None:
        return
    shape = shape_of(order.hail)
    side = VaultSide(shape, *line.take_descriptors(2))
    connection, channel = _cross(order, shape)
    bridge = Near(control, side, channel)
    loops = (bridge.from_far, bridge.questions, bridge.from_controller)
    confine(loops, (control.fileno(), connection.fileno()), allow_degraded=order.allow_degraded)


def _cross(order: Cross, shape: LinkShape) -> tuple[socket.socket, SecureChannel]:
    """Connect, prove who we are, and ask for a vault."""
    address = Address.parse(order.address)
    try:
        connection = address.connect(CONNECT_S)
    except OSError as reason:
        raise VaultLost(
            f"The outpost at {address} cannot be reached: {reason.strerror or type(reason).__name__}."
        ) from None
    channel = meet(connection, order.secret, "near", longest_record(shape))
    channel.send(KIND.pack(HAIL), msgspec.msgpack.encode(order.hail))
    record = channel.receive()
    if record is None or kind_of(record) != HAIL:
        raise ProtocolError("The outpost did not answer.")
    answer = msgspec.msgpack.decode(record[KIND.size :], type=Welcome | Unwelcome)
    if isinstance(answer, Unwelcome):
        raise VaultLost(f"The outpost at {address} refuses: {answer.message}")
    return connection, channel


class Near:
    """Three loops, a thread each; when one ends, all do."""

    def __init__(self, control: socket.socket, side: VaultSide, channel: SecureChannel) -> None:
        self._control = control
        self._side = side
        self._channel = channel

    def questions(self) -> None:
        """Service → vault, until the link is closed."""
        while (question := self._side.next_question()) is not None:
            self._channel.send(*question)

    def from_controller(self) -> None:
        """Controller → vault, until the controller hangs up."""
        mark, buffer = KIND.pack(CONTROL), memoryview(bytearray(CONTROL_BYTES))
        while received := self._control.recv_into(buffer):
            self._channel.send(mark, buffer[:received])
            buffer[:received] = _NO_BYTES[:received]
        self._channel.end()

    def from_far(self) -> None:
        """Vault → service and controller, until the other side ends."""
        while (record := self._channel.receive()) is not None:
            kind = kind_of(record)
            if kind == ANSWER:
                self._side.leave_answer(record)
            elif kind == CONTROL:
                self._control.sendall(record[KIND.size :])
                self._channel.forget()
            else:
                raise ProtocolError("A record came that is not for this side.")


if __name__ == "__main__":
    run_bridge("bridge-near", _serve)
