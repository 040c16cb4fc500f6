"""A following party's connection to the leading one: made again whenever it ends. Epochs and turns come through it."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable

import msgspec

from cloister.errors import CloisterError, ProtocolError, SetupError, Unauthorized
from cloister.link.network.address import Address
from cloister.messages.mpc import (
    VERSION,
    Beat,
    Begin,
    Broken,
    Join,
    PartyHello,
    Prepare,
    Ready,
    Refused,
    Stocked,
    ToFollower,
    Turn,
    Withdraw,
)
from cloister.mpc.certificates import Role, require
from cloister.mpc.config import PartiesConfig
from cloister.mpc.epochs import Follower, Own, beat
from cloister.mpc.line import Line

log = logging.getLogger(__name__)

INTRODUCTION_S = 10.0
SECONDS_BETWEEN_TRIES = 0.5


class Following:
    """`turn` hears whose run is next or withdrawn; `stock` digests our shelf, None while it is not complete."""

    def __init__(
        self,
        config: PartiesConfig,
        rank: int,
        tls: ssl.SSLContext,
        own: Own,
        turn: Callable[[Turn | Withdraw], None],
        stock: Callable[[], bytes | None],
    ) -> None:
        self._config = config
        self._rank = rank
        self._tls = tls
        self._own = own
        self._turn = turn
        self._stock = stock
        self._line: Line | None = None
        self._follower: Follower | None = None

    @property
    def connected(self) -> bool:
        return self._line is not None

    def tell(self, message: Ready) -> None:
        """To the leader, if it is there."""
        if self._line is not None:
            self._line.post(message)

    def restocked(self) -> None:
        """Our shelf changed."""
        if self._line is not None and (digest := self._stock()) is not None:
            self._line.post(Stocked(digest))

    def broke(self, reason: str) -> None:
        """The epoch under way is over, as we noticed."""
        if self._follower is not None:
            self._follower.broke(reason)

    async def follow(self) -> None:
        """As long as the party lives."""
        said = ""
        while True:
            try:
                await self._once()
            except (TimeoutError, CloisterError, OSError) as reason:
                words = reason.message if isinstance(reason, CloisterError) else type(reason).__name__
                if words != said:
                    log.warning("The leading party cannot be followed: %s", words)
                    said = words
            await asyncio.sleep(SECONDS_BETWEEN_TRIES)

    async def _once(self) -> None:
        place, silence_s = self._config.party[0], self._config.limits.silence_s
        address = Address.parse(place.control)
        opening = asyncio.open_connection(str(address.host), address.port, ssl=self._tls)
        reader, writer = await asyncio.wait_for(opening, INTRODUCTION_S)
        line = Line(reader, writer, ToFollower)
        beating: asyncio.Task[None] | None = None
        try:
            require(writer.get_extra_info("ssl_object"), Role("party", "0"), place.fingerprint)
            line.post(PartyHello(VERSION, self._rank, self._config.agreement))
            check_hello(self._config, await line.receive(INTRODUCTION_S), 0)
            self._line, self._follower = line, Follower(self._own, line)
            self.restocked()
            beating = asyncio.create_task(beat(line, silence_s))
            while (message := await line.receive(silence_s)) is not None:
                self._hear(self._follower, message)
        finally:
            if beating is not None:
                beating.cancel()
            if self._follower is not None:
                self._follower.close()
            self._follower = self._line = None
            line.abort()

    def _hear(self, follower: Follower, message: msgspec.Struct) -> None:
        match message:
            case Beat():
                pass
            case Prepare() | Join() | Begin() | Broken():
                follower.receive(message)
            case Turn() | Withdraw():
                self._turn(message)
            case _:
                raise ProtocolError("The leading party sent a message out of turn.")


def check_hello(config: PartiesConfig, message: msgspec.Struct | None, rank: int) -> None:
    """Raises unless the other is this rank, speaks our language and has our settings."""
    if isinstance(message, Refused):
        raise Unauthorized(message.message)
    if not isinstance(message, PartyHello) or message.version != VERSION or message.rank != rank:
        raise ProtocolError(f"Party {rank} speaks another language.", hint="Use the same version of Cloister.")
    if message.agreement != config.agreement:
        raise SetupError(f"Party {rank} has other settings.", hint="All parties need the same file.")
