"""A following party's connection to the leading one: made again whenever it ends. Epochs and turns come through it."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable
from typing import TYPE_CHECKING

import msgspec

from cloister.errors import CloisterError, ProtocolError
from cloister.link.network.address import Address
from cloister.messages.mpc import (
    VERSION,
    Beat,
    Begin,
    Broken,
    Join,
    Joined,
    PartyHello,
    Prepare,
    Prepared,
    Ready,
    ToFollower,
    Turn,
    WeightsReady,
    Withdraw,
)
from cloister.mpc.certificates import Role, require
from cloister.mpc.config import PartiesConfig
from cloister.mpc.connection import Connection
from cloister.mpc.party.leader import HELLO_S, beat, check_hello

if TYPE_CHECKING:
    from cloister.mpc.party.party import Party

log = logging.getLogger(__name__)

SECONDS_BETWEEN_TRIES = 0.5


class Follower:
    """`run` lasts as long as the party does."""

    def __init__(self, config: PartiesConfig, rank: int, tls: ssl.SSLContext, party: Party) -> None:
        self._config = config
        self._rank = rank
        self._tls = tls
        self._party = party
        self._leader: Connection | None = None
        self._epoch = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def missing(self) -> str:
        """What the next epoch waits for, as far as it is seen from here."""
        if self._leader is None:
            return "not connected: party 0"
        return "weights are not dealt" if self._party.weights_digest() is None else ""

    def tell(self, message: Ready | Prepared | Joined) -> None:
        """To the leader, if it is there."""
        if self._leader is not None:
            self._leader.post(message)

    def weights_changed(self) -> None:
        """Ours did."""
        if self._leader is not None and (digest := self._party.weights_digest()) is not None:
            self._leader.post(WeightsReady(digest))

    def broke(self, reason: str) -> None:
        """The epoch under way is over, as we noticed: end it, and say so."""
        if self._leader is not None:
            self._leader.post(Broken(self._epoch, reason))
            self._end(reason)

    async def run(self) -> None:
        """Connect to the leader, again and again."""
        said = ""
        while True:
            try:
                await self._follow()
            except (TimeoutError, CloisterError, OSError) as reason:
                words = reason.message if isinstance(reason, CloisterError) else type(reason).__name__
                if words != said:
                    log.warning("The leading party cannot be followed: %s", words)
                    said = words
            await asyncio.sleep(SECONDS_BETWEEN_TRIES)

    async def _follow(self) -> None:
        place, silence_s = self._config.party[0], self._config.limits.silence_s
        leader = await Connection.open(Address.parse(place.control), self._tls, ToFollower, HELLO_S)
        beating: asyncio.Task[None] | None = None
        try:
            require(leader.tls, Role("party", "0"), place.fingerprint)
            leader.post(PartyHello(VERSION, self._rank, self._config.agreement))
            check_hello(self._config, await leader.receive(HELLO_S), 0)
            self._leader, self._epoch = leader, 0
            self.weights_changed()
            beating = asyncio.create_task(beat(leader, silence_s))
            while (message := await leader.receive(silence_s)) is not None:
                self._hear(message)
        finally:
            if beating is not None:
                beating.cancel()
                self._end("the leading party was lost")
            self._leader = None
            leader.abort()

    def _hear(self, message: msgspec.Struct) -> None:
        match message:
            case Beat():
                pass
            case Prepare():
                self._end("a new epoch begins")
                self._epoch = message.epoch
                self._do(self._party.prepare(message.key), Prepared(message.epoch))
            case Join() | Begin() | Broken() if message.epoch != self._epoch:
                pass
            case Join():
                self._do(self._party.join(), Joined(message.epoch))
            case Begin():
                self._party.begin(message.epoch)
            case Broken():
                self._end(message.reason)
            case Turn() | Withdraw():
                self._party.sessions.decided(message)
            case _:
                raise ProtocolError("The leading party sent a message out of turn.")

    def _do(self, own: Awaitable[None], answer: Prepared | Joined) -> None:
        async def work() -> None:
            try:
                await own
                self.tell(answer)
            except (TimeoutError, CloisterError, OSError) as problem:
                log.warning("This party cannot join epoch %d: %s.", answer.epoch, type(problem).__name__)
                self.broke("a party could not join")

        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.create_task(work())

    def _end(self, reason: str) -> None:
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._task = None
        self._party.end(reason)
