"""Started by the controller for a remote vault; the vault on a local link. Overwrites buffers that held a prompt."""

import socket
from dataclasses import dataclass

from cloister.errors import CloisterError, ProtocolError, VaultLost
from cloister.link.network.address import Address
from cloister.link.network.confine import confine, run_bridge
from cloister.link.network.handshake import ask_for_evidence, ask_for_vault, shape_of
from cloister.link.network.records import ANSWER, CONTROL, CONTROL_BYTES, KIND, VaultEnd, kind_of, longest_record
from cloister.link.network.tls import SecureChannel, establish
from cloister.messages import network_link as wire
from cloister.messages.frames import encode_frame
from cloister.messages.lifecycle import start_failed
from cloister.process.blocking import BlockingEndpoint
from cloister.process.hardening import begin_child

CONNECT_S = 10.0
_ZEROS = bytes(CONTROL_BYTES)


def _serve(control: socket.socket) -> None:
    line: BlockingEndpoint[wire.Connect | wire.AskVaultHost] = BlockingEndpoint(control, wire.ToServerBridge)
    order = line.next()
    if order is None:
        return
    if isinstance(order, wire.AskVaultHost):
        return _ask(control, order)
    shape = shape_of(order.request)
    link = VaultEnd(shape, *line.take_descriptors(2))
    try:
        connection, channel = _reach(order, longest_record(shape))
    except CloisterError as reason:
        return _refuse(control, reason)
    bridge = ServerBridge(control, link, channel)
    loops = (bridge.from_vault, bridge.questions, bridge.from_controller)
    confine(loops, (control.fileno(), connection.fileno()), allow_degraded=order.allow_degraded)


def _ask(control: socket.socket, order: wire.AskVaultHost) -> None:
    try:
        connection, channel = _connected(
            Address.parse(order.address), order.credentials, KIND.size + 2 * wire.MAX_PART_BYTES
        )
        shown = wire.VaultHostShown(channel.peer_hash, ask_for_evidence(channel, order.nonce))
    except CloisterError as reason:
        return _refuse(control, reason)
    with connection:
        channel.end()
    control.sendall(encode_frame((shown,)))


def _reach(order: wire.Connect, longest: int) -> tuple[socket.socket, SecureChannel]:
    if not order.credentials.pinned:
        raise VaultLost("No vault host may be spoken to before its evidence was checked.")
    address = Address.parse(order.address)
    connection, channel = _connected(address, order.credentials, longest)
    ask_for_vault(channel, order.request, address)
    return connection, channel


def _connected(address: Address, credentials: wire.Credentials, longest: int) -> tuple[socket.socket, SecureChannel]:
    try:
        connection = address.connect(CONNECT_S)
    except OSError as reason:
        why = reason.strerror or type(reason).__name__
        raise VaultLost(f"The vault host at {address} cannot be reached: {why}.") from None
    return connection, establish(connection, credentials, longest)


def _refuse(control: socket.socket, reason: CloisterError) -> None:
    """The controller says why, once: it asks again every second."""
    control.sendall(encode_frame((start_failed(reason, "The vault host cannot be used"),)))


@dataclass(eq=False, repr=False)
class ServerBridge:
    _control: socket.socket
    _link: VaultEnd
    _channel: SecureChannel

    def questions(self) -> None:
        while (question := self._link.next_question()) is not None:
            self._channel.send(*question)

    def from_controller(self) -> None:
        mark, buffer = KIND.pack(CONTROL), memoryview(bytearray(CONTROL_BYTES))
        while received := self._control.recv_into(buffer):
            self._channel.send(mark, buffer[:received])
            buffer[:received] = _ZEROS[:received]
        self._channel.end()

    def from_vault(self) -> None:
        while (record := self._channel.receive()) is not None:
            kind = kind_of(record)
            if kind == ANSWER:
                self._link.leave_answer(record)
            elif kind == CONTROL:
                self._control.sendall(record[KIND.size :])
                self._channel.forget()
            else:
                raise ProtocolError("A record came that is not for this side.")


ROLE = "bridge-near"


def main(control: socket.socket) -> None:
    run_bridge(control, _serve)


if __name__ == "__main__":
    main(begin_child(ROLE))
