"""Forks a vault bridge for each peer that proves to know the key, with connection and TLS keys; it forgets both."""

import asyncio
import os
import signal
import socket
from typing import NoReturn
from weakref import WeakSet

from cloister.errors import ProtocolError
from cloister.link.network.address import without_delay
from cloister.link.network.confine import run_bridge, say
from cloister.link.network.door import Door
from cloister.link.network.handshake import shape_of
from cloister.link.network.records import longest_record
from cloister.link.network.tls import SecureChannel, context_for
from cloister.link.network.vault_bridge import carry
from cloister.messages.network_link import Accept, Arrived
from cloister.process.blocking import BlockingEndpoint
from cloister.process.hardening import begin_child, die_with_parent, name_process
from cloister.process.sandbox.resources import close_all_but

READ_BYTES = 1 << 14


def _serve(host: socket.socket) -> None:
    line: BlockingEndpoint[Accept] = BlockingEndpoint(host, Accept)
    if (order := line.next()) is None:
        return
    listener = socket.socket(fileno=line.take_descriptors(1)[0])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the vault host waits for bridges, and the kernel reaps them
    keeper = Doorkeeper(line, order)
    asyncio.run(keeper.keep(listener))


class Doorkeeper:
    """Ends with the vault host, and all bridges with it."""

    def __init__(self, host: BlockingEndpoint[Accept], order: Accept) -> None:
        self._host = host
        self._order = order
        self._context = context_for(order.credentials)
        self._limit = longest_record(shape_of(order.request))
        self._channels: WeakSet[SecureChannel] = WeakSet()

    async def keep(self, listener: socket.socket) -> None:
        await Door(listener, self._prove, self._admit).run()

    async def _prove(self, connection: socket.socket) -> SecureChannel:
        without_delay(connection)
        channel = SecureChannel(connection, self._order.credentials, self._limit, self._context)
        self._channels.add(channel)
        loop = asyncio.get_running_loop()
        proved, received = False, b""
        while not proved:
            proved = channel.advance(received)
            await loop.sock_sendall(connection, channel.unsent())
            if not proved and not (received := await loop.sock_recv(connection, READ_BYTES)):
                raise ProtocolError("A peer hung up before it had proved itself.")
        return channel

    def _admit(self, channel: SecureChannel) -> None:
        ours, theirs = socket.socketpair()
        keeper = os.getpid()
        with channel.connection, ours, theirs:
            try:
                pid = os.fork()
                if not pid:
                    self._become_bridge(keeper, theirs, channel)
                pidfd = os.pidfd_open(pid)
            except OSError as reason:  # too many processes, or it has ended already
                say(reason)
                return
            try:
                self._host.send(Arrived(), pidfd, ours.fileno())
            except ConnectionError:  # the vault host has ended, so this process and all bridges do
                os._exit(0)
            os.close(pidfd)

    def _become_bridge(self, keeper: int, host: socket.socket, channel: SecureChannel) -> NoReturn:
        """In the forked process. The event loop is the parent's: nothing here may touch it, or return to it."""
        try:
            die_with_parent()
            if os.getppid() != keeper:  # it ended before the kernel knew
                os._exit(1)
            close_all_but({0, 1, 2, host.fileno(), channel.connection.fileno()})
            for other in set(self._channels) - {channel}:
                other.abandon()
            name_process("bridge-far", forked=True)
            channel.connection.setblocking(True)
            carry(host, channel, self._order)
        except BaseException as reason:
            say(reason if isinstance(reason, Exception) else ProtocolError("A bridge was interrupted."))
        finally:
            os._exit(1)


ROLE = "doorkeeper"


def main(control: socket.socket) -> None:
    run_bridge(control, _serve)


if __name__ == "__main__":
    main(begin_child(ROLE))
