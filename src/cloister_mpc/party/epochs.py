"""Epochs: engines live and die together. Rank 0 leads: join, then begin. A silent party counts as gone."""

import asyncio
import logging
import secrets
import ssl
from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec

from cloister.errors import CloisterError, PartyLost, ProtocolError, SetupError, Unauthorized
from cloister.link.network.address import Address
from cloister.process.supervisor import cancelled
from cloister_mpc import messages
from cloister_mpc.certificates import Role, check_pin, require
from cloister_mpc.config import PartiesConfig
from cloister_mpc.connection import Connection
from cloister_mpc.party.sessions import Sessions
from cloister_mpc.party.weight_store import WeightStore

log = logging.getLogger(__name__)

HELLO_S = 10.0
SECONDS_BETWEEN_EPOCHS = 0.5
SECONDS_BETWEEN_TRIES = 0.5


class EpochParty(Protocol):
    weights: WeightStore
    sessions: Sessions

    async def join(self, key: bytes) -> None: ...
    def begin(self, epoch: int) -> None: ...
    def end(self, reason: str) -> None: ...


class Leader:
    def __init__(self, config: PartiesConfig, party: EpochParty) -> None:
        self._config = config
        self._party = party
        self._followers: dict[int, Connection] = {}
        self._digests: dict[int, bytes] = {}
        self._joined: set[int] = set()
        self._changed = asyncio.Event()
        self._broken: str | None = None
        self._using: bytes | None = None
        self._number = 0

    @property
    def missing(self) -> str:
        """What the next epoch waits for; empty when nothing."""
        absent = [str(rank) for rank in range(1, len(self._config.party)) if rank not in self._followers]
        if absent:
            return f"not connected: party {', '.join(absent)}"
        own = self._party.weights.digest
        if own is None:
            return "weights are not dealt"
        if any(self._digests.get(rank) != own for rank in self._followers):
            return "the parties' weights are not of one dealing"
        return ""

    async def serve(self, connection: Connection, rank: int) -> None:
        if not 0 < rank < len(self._config.party):
            raise Unauthorized("Parties connect to rank 0 only.")
        check_pin(connection.tls, self._config.party[rank].fingerprint)
        check_hello(self._config, await connection.receive(HELLO_S), rank)
        connection.post(messages.PartyHello(messages.VERSION, 0, self._config.agreement))
        if rank in self._followers:
            raise Unauthorized(f"Party {rank} is connected already.")
        self._followers[rank] = connection
        self._changed.set()
        reason = f"party {rank} was lost"
        try:
            await converse(connection, self._config.limits.silence_s, partial(self._handle, rank))
        except TimeoutError:
            reason = f"party {rank} fell silent"
            raise
        except ProtocolError:
            reason = f"party {rank} said what it must not"
            raise
        finally:
            self._party.sessions.end(reason)
            self._followers.pop(rank, None)
            self._digests.pop(rank, None)
            self.broke(reason)

    def _handle(self, rank: int, message: msgspec.Struct) -> None:
        match message:
            case messages.WeightsReady():
                self._digests[rank] = message.digest
                self.weights_changed()
            case messages.Joined():
                if message.epoch == self._number:
                    self._joined.add(rank)
                    self._changed.set()
            case messages.Broken():
                if message.epoch == self._number:
                    self.broke(message.reason)
            case messages.Ready():
                self._party.sessions.ready(rank, message)
            case _:
                raise ProtocolError("A party sent a message out of turn.")

    def weights_changed(self) -> None:
        """At some party: once all agree again, engines must load what is new."""
        if not self.missing and self._party.weights.digest != self._using:
            self.broke("new weights")
        self._changed.set()

    def broke(self, reason: str) -> None:
        self._broken = self._broken or reason
        self._changed.set()

    def tell(self, message: msgspec.Struct) -> None:
        for connection in self._followers.values():
            connection.post(message)

    async def run(self) -> None:
        while True:
            await self._until(lambda: not self.missing)
            self._broken = None
            self._using = self._party.weights.digest
            self._joined.clear()
            self._number += 1
            try:
                await asyncio.wait_for(self._establish(), self._config.limits.start_s)
                log.info("Epoch %d has begun.", self._number)
                await self._until(lambda: self._broken is not None)
            except (TimeoutError, CloisterError, OSError) as problem:
                self._broken = self._broken or f"an epoch did not begin ({type(problem).__name__})"
            reason = self._broken or "it broke"
            log.warning("Epoch %d is over: %s.", self._number, reason)
            self.tell(messages.Broken(self._number, reason))
            self._party.end(reason)
            await asyncio.sleep(SECONDS_BETWEEN_EPOCHS)

    async def _establish(self) -> None:
        """Our own part and all followers' answers; ends at once when something broke."""
        self.tell(messages.Prepare(self._number, key := secrets.token_bytes(16)))
        own = asyncio.create_task(self._party.join(key))
        own.add_done_callback(lambda _: self._changed.set())
        try:
            await self._until(
                lambda: self._broken is not None or (own.done() and len(self._joined) == len(self._config.party) - 1)
            )
            if self._broken is not None:
                raise PartyLost(self._broken)
            await own
        finally:
            await cancelled(own)
        self.tell(messages.Begin(self._number))
        self._party.begin(self._number)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()


class Follower:
    """Connects to the leader again whenever the connection ends. `run` lasts as long as the party does."""

    def __init__(self, config: PartiesConfig, rank: int, tls: ssl.SSLContext, party: EpochParty) -> None:
        self._config = config
        self._rank = rank
        self._tls = tls
        self._party = party
        self._leader: Connection | None = None
        self._epoch = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def missing(self) -> str:
        if self._leader is None:
            return "not connected: party 0"
        return "weights are not dealt" if self._party.weights.digest is None else ""

    def tell(self, message: msgspec.Struct) -> None:
        if self._leader is not None:
            self._leader.post(message)

    def weights_changed(self) -> None:
        if (digest := self._party.weights.digest) is not None:
            self.tell(messages.WeightsReady(digest))

    def broke(self, reason: str) -> None:
        if self._leader is not None:
            self._leader.post(messages.Broken(self._epoch, reason))
            self._end(reason)

    async def run(self) -> None:
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
        place = self._config.party[0]
        leader = await Connection.open(Address.parse(place.control), self._tls, messages.ToFollower, HELLO_S)
        try:
            require(leader.tls, Role("party", "0"), place.fingerprint)
            leader.post(messages.PartyHello(messages.VERSION, self._rank, self._config.agreement))
            check_hello(self._config, await leader.receive(HELLO_S), 0)
            self._leader, self._epoch = leader, 0
            self.weights_changed()
            await converse(leader, self._config.limits.silence_s, self._handle)
        finally:
            if self._leader is not None:
                self._end("the leading party was lost")
            self._leader = None
            leader.abort()

    def _handle(self, message: msgspec.Struct) -> None:
        match message:
            case messages.Prepare():
                self._end("a new epoch begins")
                self._epoch = message.epoch
                self._task = asyncio.create_task(self._join(message))
            case messages.Begin() | messages.Broken() if message.epoch != self._epoch:
                pass
            case messages.Begin():
                self._party.begin(message.epoch)
            case messages.Broken():
                self._end(message.reason)
            case messages.Turn() | messages.Withdraw():
                self._party.sessions.decided(message)
            case _:
                raise ProtocolError("The leading party sent a message out of turn.")

    async def _join(self, order: messages.Prepare) -> None:
        try:
            await self._party.join(order.key)
            self.tell(messages.Joined(order.epoch))
        except (TimeoutError, CloisterError, OSError) as problem:
            log.warning("This party cannot join epoch %d: %s.", order.epoch, type(problem).__name__)
            self.broke("a party could not join")

    def _end(self, reason: str) -> None:
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._task = None
        self._party.end(reason)


async def converse(connection: Connection, silence_s: float, handle: Callable[[msgspec.Struct], None]) -> None:
    """Until the other party is gone; sends it heartbeats meanwhile. TimeoutError if it is silent."""

    async def beat() -> None:
        while True:
            connection.post(messages.Beat())
            await asyncio.sleep(silence_s / 4)

    beating = asyncio.create_task(beat())
    try:
        while (message := await connection.receive(silence_s)) is not None:
            if not isinstance(message, messages.Beat):
                handle(message)
    finally:
        beating.cancel()


def check_hello(config: PartiesConfig, message: msgspec.Struct | None, rank: int) -> None:
    if isinstance(message, messages.Refused):
        raise Unauthorized(message.message)
    if not isinstance(message, messages.PartyHello) or message.version != messages.VERSION or message.rank != rank:
        raise ProtocolError(f"Party {rank} speaks another language.", hint="Use the same version of Cloister.")
    if message.agreement != config.agreement:
        raise SetupError(f"Party {rank} has other settings.", hint="All parties need the same file.")
