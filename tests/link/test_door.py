"""A door with little room: strangers come and go, and whoever proves itself is let in."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cloister.errors import ProtocolError
from cloister.link.network.address import Address, address_of
from cloister.link.network.door import Door

FOR_EVER = 1000.0


class Place:
    """Lets in who says `yes`, and answers it with `in`; `no` is refused."""

    def __init__(self, most: int, patience_s: float) -> None:
        self._listener = Address("127.0.0.1", 0).listen()
        self.address = address_of(self._listener)
        self.inside: list[socket.socket] = []
        self.proving = 0
        self.door = Door(self._listener, self._prove, self._admit, most=most, patience_s=patience_s)

    async def _prove(self, connection: socket.socket) -> socket.socket:
        self.proving += 1
        try:
            if await asyncio.get_running_loop().sock_recv(connection, 3) != b"yes":
                raise ProtocolError("Not one of us.")
            return connection
        finally:
            self.proving -= 1

    def _admit(self, connection: socket.socket) -> None:
        self.inside.append(connection)
        connection.send(b"in")

    def close(self) -> None:
        for one in (self._listener, *self.inside):
            one.close()


@asynccontextmanager
async def place(most: int = 4, patience_s: float = FOR_EVER) -> AsyncIterator[Place]:
    made = Place(most, patience_s)
    running = asyncio.create_task(made.door.run())
    try:
        async with asyncio.timeout(60):
            yield made
    finally:
        running.cancel()
        await asyncio.wait((running,))
        made.close()


async def come(to: Place, words: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(str(to.address.host), to.address.port)
    writer.write(words)
    return reader, writer


async def test_the_oldest_stranger_makes_room_for_the_newest() -> None:
    async with place(most=4) as here:
        strangers = [await come(here) for _ in range(64)]
        for reader, _ in strangers[:60]:
            assert await reader.read() == b"", "the oldest have to go"
        reader, _ = await come(here, b"yes")
        assert await reader.readexactly(2) == b"in"
        assert here.proving == 3 and len(here.inside) == 1
        strangers[-1][1].write(b"yes")
        assert await strangers[-1][0].readexactly(2) == b"in", "the newest were not dropped"


async def test_who_came_amid_a_queue_of_strangers_has_its_turn() -> None:
    """All wait in the kernel before the door opens, and have said what they will."""
    here = Place(most=4, patience_s=FOR_EVER)
    queue = [socket.create_connection((str(here.address.host), here.address.port), 60) for _ in range(64)]
    queue[20].sendall(b"yes")
    running = asyncio.create_task(here.door.run())
    try:
        assert await asyncio.wait_for(asyncio.to_thread(queue[20].recv, 2), 60) == b"in"
    finally:
        running.cancel()
        await asyncio.wait((running,))
        here.close()
        for one in queue:
            one.close()


async def test_who_was_let_in_takes_no_strangers_place() -> None:
    async with place(most=1) as here:
        for _ in range(8):
            friend, _ = await come(here, b"yes")
            assert await friend.readexactly(2) == b"in"
        stranger, _ = await come(here)
        friend, _ = await come(here, b"yes")
        assert await friend.readexactly(2) == b"in"
        assert await stranger.read() == b"", "there was room for one"
        assert len(here.inside) == 9


async def test_who_does_not_prove_itself_in_time_is_dropped() -> None:
    async with place(patience_s=0.05) as here:
        reader, _ = await come(here)
        assert await reader.read() == b""
        assert not here.inside and not here.proving


async def test_who_fails_to_is_dropped_at_once_and_alone() -> None:
    async with place() as here:
        waiting, writer = await come(here)
        reader, _ = await come(here, b"no!")
        assert await reader.read() == b""
        writer.write(b"yes")
        assert await waiting.readexactly(2) == b"in"


async def test_strangers_end_with_the_door() -> None:
    async with place() as here:
        reader, _ = await come(here)
        friend, _ = await come(here, b"yes")
        assert await friend.readexactly(2) == b"in"
    assert await asyncio.wait_for(reader.read(), 60) == b""
