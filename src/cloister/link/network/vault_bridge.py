"""Forked by the doorkeeper for each proved peer: service and controller to a new vault, except for the cores."""

import select
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue

import msgspec

from cloister.errors import ProtocolError
from cloister.link.network.confine import confine
from cloister.link.network.handshake import check_request, grant_vault, next_request, shape_of, show_evidence
from cloister.link.network.records import CONTROL, CONTROL_BYTES, KIND, QUESTION, ServiceEnd, kind_of
from cloister.link.network.tls import CutOff, SecureChannel
from cloister.messages import network_link as wire
from cloister.messages.controller_gateway import AskEvidence, Evidence
from cloister.messages.controller_vault import CoresDone, FromVault, LeaseCores, ToVault, WantCores
from cloister.messages.frames import FrameReader, encode_frame
from cloister.messages.generation import Failed
from cloister.messages.lifecycle import raised
from cloister.process.blocking import BlockingEndpoint

RECEIVE_BYTES = 1 << 18
MAX_UNSENT_FRAMES = 4096


def carry(host: socket.socket, channel: SecureChannel, order: wire.Accept) -> None:
    line: BlockingEndpoint[wire.UseVault | Evidence | Failed] = BlockingEndpoint(host, wire.ToVaultBridge)
    while isinstance(asked := next_request(channel), wire.EvidenceRequest):
        line.send(AskEvidence(0, asked.nonce))
        shown = line.next()
        if isinstance(shown, Failed):
            raise raised(shown)
        if not isinstance(shown, Evidence):
            return
        show_evidence(channel, shown.document)
    if asked is None:
        return
    check_request(channel, asked, order.request)
    line.send(wire.Admitted())
    if not isinstance(line.next(), wire.UseVault):
        return
    question, answer, control = line.take_descriptors(3)
    vault = socket.socket(fileno=control)
    bridge = VaultBridge(host, vault, ServiceEnd(shape_of(order.request), question, answer), channel)
    grant_vault(channel)
    loops = (bridge.from_server, bridge.from_vault, bridge.to_vault)
    keep = (host.fileno(), channel.connection.fileno(), vault.fileno())
    confine(loops, keep, allow_degraded=order.allow_degraded)


@dataclass(eq=False, repr=False)
class VaultBridge:
    _host: socket.socket
    _vault: socket.socket
    _link: ServiceEnd
    _channel: SecureChannel
    _unsent: SimpleQueue[bytes] = field(default_factory=SimpleQueue)

    def from_server(self) -> None:
        """A server kills what it no longer needs, so most sessions end in a cut line: it is not reported."""
        frames: FrameReader[msgspec.Struct] = FrameReader(ToVault)
        with suppress(CutOff):
            while (record := self._channel.receive()) is not None:
                kind = kind_of(record)
                if kind == QUESTION:
                    # Even while the vault is silent we must notice that the server has hung up.
                    answer = self._link.ask(record, self._channel.hung_up)
                    if answer is None:
                        return
                    self._channel.send(*answer)
                elif kind == CONTROL:
                    self._pass_on(frames.feed(bytes(record[KIND.size :])))
                    self._channel.forget()
                else:
                    raise ProtocolError("A record came that is not for this side.")

    def _pass_on(self, messages: list[msgspec.Struct]) -> None:
        """Keeps none of the messages: a prompt is among them."""
        for message in messages:
            if isinstance(message, LeaseCores):
                raise ProtocolError("The cores of a vault host are not the server's to give.")
            self._tell_vault(message)

    def to_vault(self) -> None:
        """What a busy vault has not read yet waits here, so that answers to the service need not wait."""
        while True:
            self._vault.sendall(self._unsent.get())

    def from_vault(self) -> None:
        said: FrameReader[msgspec.Struct] = FrameReader(FromVault)
        granted: FrameReader[LeaseCores] = FrameReader(LeaseCores)
        poll = select.poll()
        poll.register(self._vault, select.POLLIN)
        poll.register(self._host, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                source = self._vault if descriptor == self._vault.fileno() else self._host
                data = source.recv(RECEIVE_BYTES)
                if not data:
                    return self._channel.end()
                if source is self._host:
                    for grant in granted.feed(data):
                        self._tell_vault(grant)
                    continue
                for message in said.feed(data):
                    frame = encode_frame((message,))
                    if isinstance(message, WantCores | CoresDone):
                        self._host.sendall(frame)
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
