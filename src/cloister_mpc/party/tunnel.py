"""A party's tunnel: carries the engines' link over mutual TLS, since SPU's own link also takes plaintext from any
peer. engine ─ to-1.sock ─▶ tunnel ══ TLS ══▶ tunnel of party 1 ─ engine.sock ─▶ engine of party 1. Sees masked
shares. A connection begins with the epoch's key. Which of two others sent a message, the engine's own header says."""

import asyncio
import hmac
import logging
import os
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

from cloister.errors import CloisterError, ProtocolError
from cloister.link.network.address import Address, without_delay
from cloister.link.network.door import Door
from cloister.process.hardening import begin_child
from cloister_mpc.certificates import Credentials, Role, check_pin, client_tls, require, role_of, server_tls
from cloister_mpc.config import PartiesConfig, decode_settings
from cloister_mpc.connection import Connection
from cloister_mpc.messages import Established, Listening, StartTunnel, ToTunnel

DIAL_S = 10.0
_ENOUGH = 1 << 22


class End(asyncio.Protocol):
    """One of two connections: what it receives, the other sends. While the other is slow, nothing is read."""

    transport: asyncio.Transport

    def __init__(self, pair_ended: Callable[[], None]) -> None:
        self._pair_ended = pair_ended
        self._other: End | None = None
        self._early = bytearray()
        self._wanted = 1
        self._received = asyncio.Event()

    async def receive(self, count: int) -> bytes:
        """The first bytes, before there is another end to carry them to."""
        self._wanted = count
        self.transport.resume_reading()
        while len(self._early) < count:
            if self.transport.is_closing():
                raise ProtocolError("A connection ended in its handshake.")
            self._received.clear()
            await self._received.wait()
        received = bytes(self._early[:count])
        del self._early[:count]
        return received

    def carry_to(self, other: "End") -> None:
        for source, sink in ((self, other), (other, self)):
            source._other = sink
            sink.transport.write(source._early)
            source.transport.resume_reading()
        for end in (self, other):
            if end.transport.is_closing():
                end.connection_lost(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(_ENOUGH)

    def data_received(self, data: bytes) -> None:
        if self._other is not None:
            self._other.transport.write(data)
            return
        self._early += data
        if len(self._early) >= self._wanted:
            self.transport.pause_reading()
        self._received.set()

    def pause_writing(self) -> None:
        if self._other is not None:
            self._other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._other is not None:
            self._other.transport.resume_reading()

    def connection_lost(self, reason: Exception | None) -> None:
        self._received.set()
        if self._other is not None:
            self._other.transport.close()
            self._pair_ended()


class Tunnel:
    """Once `established`, the end of one connection is the end of the process."""

    def __init__(self, start: StartTunnel) -> None:
        self._config = decode_settings(start.settings, PartiesConfig)
        self._rank = start.rank
        self._key = start.key
        self._folder = Path(start.folder)
        place = self._config.party[start.rank]
        own = Credentials(self._config.path(place.certificate), self._config.path(place.key))
        authority = self._config.path(self._config.authority)
        self._server_tls = server_tls(authority, own)
        self._client_tls = client_tls(authority, own)
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self.established = False

    def listen(self) -> None:
        for rank, place in enumerate(self._config.party):
            if rank == self._rank:
                self._begin(Door(Address.parse(place.link).listen(), self._prove, self._admit).run())
                continue
            inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            inner.bind(str(self._folder / f"to-{rank}.sock"))
            inner.listen()
            # The engine's connections fail too while its peer is not up: that is no attack.
            dial = partial(self._dial, rank)
            carry = lambda pair: pair[0].carry_to(pair[1])  # noqa: E731
            self._begin(Door(inner, dial, carry, patience_s=DIAL_S, report=False).run())

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _prove(self, connection: socket.socket) -> End:
        """Another party's tunnel connects: checks who it is, and that it is of this epoch."""
        without_delay(connection)
        _, secure = await self._loop.connect_accepted_socket(self._end, connection, ssl=self._server_tls)
        try:
            tls = secure.transport.get_extra_info("ssl_object")
            role = role_of(tls)
            others = [str(rank) for rank in range(len(self._config.party)) if rank != self._rank]
            if role.kind != "party" or role.name not in others:
                raise ProtocolError("Only other parties may connect.")
            check_pin(tls, self._config.party[int(role.name)].fingerprint)
            if not hmac.compare_digest(await secure.receive(len(self._key)), self._key):
                raise ProtocolError("A connection of another epoch.")
        except BaseException:
            secure.transport.abort()
            raise
        return secure

    def _admit(self, secure: End) -> None:
        self._begin(self._carry_to_engine(secure))

    async def _carry_to_engine(self, secure: End) -> None:
        try:
            _, engine = await self._loop.create_unix_connection(self._end, str(self._folder / "engine.sock"))
        except OSError:  # the engine is not up yet: the peer's tries again
            secure.transport.abort()
        else:
            secure.carry_to(engine)

    async def _dial(self, rank: int, connection: socket.socket) -> tuple[End, End]:
        place = self._config.party[rank]
        address = Address.parse(place.link)
        _, secure = await self._loop.create_connection(
            self._end, str(address.host), address.port, ssl=self._client_tls, server_hostname=""
        )
        try:
            without_delay(secure.transport.get_extra_info("socket"))
            require(secure.transport.get_extra_info("ssl_object"), Role("party", str(rank)), place.fingerprint)
            secure.transport.write(self._key)
            _, engine = await self._loop.connect_accepted_socket(self._end, connection)
        except BaseException:
            secure.transport.abort()
            raise
        return secure, engine

    def _end(self) -> End:
        return End(self._pair_ended)

    def _pair_ended(self) -> None:
        if self.established:
            os._exit(0)


async def serve(party: socket.socket) -> None:
    control = Connection(*await asyncio.open_connection(sock=party), ToTunnel)
    start = await control.receive()
    if not isinstance(start, StartTunnel):
        raise ProtocolError("A tunnel gets StartTunnel first.")
    tunnel = Tunnel(start)
    tunnel.listen()
    control.post(Listening())
    with suppress(CloisterError):
        while isinstance(await control.receive(), Established):
            tunnel.established = True
    os._exit(0)


if __name__ == "__main__":
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # failed handshakes of unknown peers, with tracebacks
    asyncio.run(serve(begin_child("mpc-tunnel")))
