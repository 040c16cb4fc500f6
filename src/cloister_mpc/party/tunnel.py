"""The engines' link over mutual TLS, since SPU's takes plaintext from any peer; begins with the epoch's key. Sees
masked shares. engine ─ to-1.sock ─▶ tunnel ══ TLS ══▶ tunnel of party 1 ─ engine.sock ─▶ engine of party 1."""

import asyncio
import hmac
import logging
import os
import socket
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from cloister.errors import CloisterError, ProtocolError
from cloister.link.network.address import Address, without_delay
from cloister.link.network.door import Door
from cloister.process.hardening import begin_child
from cloister_mpc.certificates import Credentials, Role, check_pin, client_tls, require, role_of, server_tls
from cloister_mpc.config import PartiesConfig, decode_settings
from cloister_mpc.connection import Connection, accepted
from cloister_mpc.messages import Established, Listening, StartTunnel, ToTunnel

DIAL_S = 10.0
_ENOUGH = 1 << 18

End = tuple[asyncio.StreamReader, asyncio.StreamWriter]


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
            admit = lambda ends: self._begin(self._carry(*ends))  # noqa: E731
            self._begin(Door(inner, partial(self._dial, rank), admit, patience_s=DIAL_S, report=False).run())

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _prove(self, connection: socket.socket) -> End | None:
        """Another party's tunnel connects: checks who it is. None where it is of another epoch: it will try again."""
        secure = await accepted(without_delay(connection), self._server_tls)
        try:
            tls = secure[1].get_extra_info("ssl_object")
            role = role_of(tls)
            others = [str(rank) for rank in range(len(self._config.party)) if rank != self._rank]
            if role.kind != "party" or role.name not in others:
                raise ProtocolError("Only other parties may connect.")
            check_pin(tls, self._config.party[int(role.name)].fingerprint)
            if hmac.compare_digest(await secure[0].readexactly(len(self._key)), self._key):
                return secure
        except BaseException as wrong:
            secure[1].transport.abort()
            if isinstance(wrong, asyncio.IncompleteReadError):
                raise ProtocolError("A connection ended in its handshake.") from None
            raise
        secure[1].transport.abort()
        return None

    def _admit(self, secure: End | None) -> None:
        if secure is not None:
            self._begin(self._carry_to_engine(secure))

    async def _carry_to_engine(self, secure: End) -> None:
        try:
            engine = await asyncio.open_unix_connection(str(self._folder / "engine.sock"))
        except OSError:  # the engine is not up yet: the peer's tries again
            secure[1].transport.abort()
        else:
            await self._carry(secure, engine)

    async def _dial(self, rank: int, connection: socket.socket) -> tuple[End, End]:
        place = self._config.party[rank]
        address = Address.parse(place.link)
        secure = await asyncio.open_connection(
            str(address.host), address.port, ssl=self._client_tls, server_hostname=""
        )
        writer = secure[1]
        try:
            without_delay(writer.get_extra_info("socket"))
            require(writer.get_extra_info("ssl_object"), Role("party", str(rank)), place.fingerprint)
            writer.write(self._key)
            return secure, await accepted(connection, None)
        except BaseException:
            writer.transport.abort()
            raise

    async def _carry(self, one: End, other: End) -> None:
        """Both ways, until one way ends; while a receiver is slow, its sender is not read from."""
        ways = [self._loop.create_task(_copy(one[0], other[1])), self._loop.create_task(_copy(other[0], one[1]))]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for _, writer in (one, other):
            writer.close()
        if self.established:
            os._exit(0)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_ENOUGH):
            writer.write(data)
            await writer.drain()


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
