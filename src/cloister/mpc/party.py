"""A party: one process of its operator's, beside others' it need not trust. `start` opens its door, `close` ends it.

It knows who connects by their certificates, and what each role may say: followers about epochs, the provider about
weights, clients about their own sessions. Shares pass through it to its engine; it looks into none.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from cloister.errors import CloisterError, PartyLost, ProtocolError, SetupError, Unauthorized
from cloister.link.network.address import Address
from cloister.messages.mpc import (
    VERSION,
    AskShelf,
    AskStatus,
    Beat,
    Broken,
    Close,
    Complete,
    FromVisitor,
    Hello,
    Joined,
    Load,
    Open,
    PartyHello,
    Piece,
    Prepared,
    Put,
    Ready,
    Refused,
    Run,
    Stocked,
    Turn,
    Weight,
    WeightPiece,
    Welcome,
    Withdraw,
)
from cloister.mpc.certificates import Credentials, Role, check_pin, client_tls, role_of, server_tls
from cloister.mpc.config import PartiesConfig
from cloister.mpc.desk import Desk
from cloister.mpc.epochs import Leader, Own, beat
from cloister.mpc.following import INTRODUCTION_S, Following, check_hello
from cloister.mpc.line import Line
from cloister.mpc.provider_desk import ProviderDesk
from cloister.mpc.room import Room
from cloister.mpc.shelf import Shelf

log = logging.getLogger(__name__)


class Party:
    """Rank `rank` of the parties in `config`."""

    def __init__(self, config: PartiesConfig, rank: int) -> None:
        place = config.party[rank]
        self._config = config
        self._rank = rank
        own = Credentials(config.path(place.certificate), config.path(place.key))
        authority = config.path(config.authority)
        self._server_tls = server_tls(authority, own)
        self._client_tls = client_tls(authority, own)
        limit = config.limits.weights_mib << 20
        self._shelf = Shelf(config.path(place.shelf) if place.shelf else None, config.protocol, limit)
        stages = Own(self._prepare, self._join, self._begin, self._end)
        self._leader = Leader(config, stages, self._stock) if rank == 0 else None
        self._following = Following(config, rank, self._client_tls, stages, self._turn, self._stock)
        self._desk = Desk(config, rank, self._following.tell, self._tell_followers)
        self._provider_desk = ProviderDesk(self._shelf, self._restocked)
        self._room: Room | None = None
        self._epoch = 0
        self._visits: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None

    @property
    def room(self) -> Room | None:
        """The epoch's engine and tunnel, while there are any."""
        return self._room

    async def start(self) -> None:
        """Open the door; epochs come and go from now on."""
        address = Address.parse(self._config.party[self._rank].control)
        try:
            self._server = await asyncio.start_server(
                self._welcome,
                str(address.host),
                address.port,
                ssl=self._server_tls,
                ssl_handshake_timeout=INTRODUCTION_S,
            )
        except OSError as reason:
            raise SetupError(
                f"Cannot listen on {address}: {reason.strerror}.", hint="Is another party there?"
            ) from None
        life = self._leader.lead() if self._leader else self._following.follow()
        self._tasks = [asyncio.create_task(life), asyncio.create_task(self._watch())]

    async def close(self) -> None:
        """End everything that this party started."""
        if self._server:
            self._server.close()
        for task in (*self._tasks, *self._visits):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._visits, return_exceptions=True)
        self._end("a party was stopped")
        self._shelf.close()

    # Stages of an epoch.

    async def _prepare(self, key: bytes) -> None:
        self._end("a new epoch begins")
        self._room = Room(self._config, self._rank, self._desk.heard, self._broke)
        await self._room.start(key)

    async def _join(self) -> None:
        complete = self._shelf.complete
        if self._room is None or complete is None:
            raise PartyLost("There is nothing to join with.")
        await self._room.join(Load(complete.shape, str(self._shelf.folder), self._shelf.used()))

    def _begin(self, epoch: int) -> None:
        if self._room is None or self._shelf.complete is None:
            return
        self._epoch = epoch
        self._desk.begin(epoch, self._room)
        self._provider_desk.begin()

    def _end(self, reason: str) -> None:
        self._desk.end(reason)
        self._provider_desk.end()
        if self._room is not None:
            self._room.close()
            self._room = None

    def _broke(self, reason: str) -> None:
        """Something of ours ended: the epoch is over for everyone."""
        if self._leader is not None:
            self._desk.end(reason)  # before results of a broken run could be mistaken for whole ones
            self._leader.broke(reason)
        else:
            self._following.broke(reason)

    def _stock(self) -> bytes | None:
        return self._shelf.digest if self._shelf.complete else None

    def _restocked(self) -> None:
        if self._leader is not None:
            self._leader.restocked()
        else:
            self._following.restocked()

    def _turn(self, message: Turn | Withdraw) -> None:
        if isinstance(message, Turn):
            self._desk.turn(message)
        else:
            self._desk.withdraw(message)

    def _tell_followers(self, message: msgspec.Struct) -> None:
        if self._leader is not None:
            self._leader.tell(message)

    async def _watch(self) -> None:
        limits = self._config.limits
        while True:
            await asyncio.sleep(min(1.0, limits.run_silence_s / 4, limits.idle_s / 4))
            if (reason := self._desk.watch()) is not None:
                self._broke(reason)

    # Who connects to us.

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = Line(reader, writer, FromVisitor)
        task = asyncio.current_task()
        assert task is not None
        if len(self._visits) >= self._config.limits.connections:
            log.warning("A connection was turned away: too many.")
            line.abort()
            return
        self._visits.add(task)
        try:
            role = role_of(writer.get_extra_info("ssl_object"))
            log.info("Connected: %s.", role.uri)
            if role.kind == "party":
                await self._serve_follower(line, int(role.name), writer)
            else:
                await self._serve_dealer(line, role)
        except CloisterError as reason:
            log.warning("A connection was ended: %s.", reason.code)
            line.post(Refused(reason.code, reason.message, reason.hint or ""))
        except (TimeoutError, OSError) as reason:
            log.warning("A connection was ended: %s.", type(reason).__name__)
        finally:
            self._visits.discard(task)
            line.close()

    async def _serve_follower(self, line: Line, rank: int, writer: asyncio.StreamWriter) -> None:
        if self._leader is None or not 0 < rank < len(self._config.party):
            raise Unauthorized("Parties connect to rank 0 only.")
        check_pin(writer.get_extra_info("ssl_object"), self._config.party[rank].fingerprint)
        check_hello(self._config, await line.receive(INTRODUCTION_S), rank)
        line.post(PartyHello(VERSION, 0, self._config.agreement))
        if not self._leader.arrived(rank, line):
            raise Unauthorized(f"Party {rank} is connected already.")
        reason = f"party {rank} was lost"
        beating = asyncio.create_task(beat(line, self._config.limits.silence_s))
        try:
            while (message := await line.receive(self._config.limits.silence_s)) is not None:
                self._from_follower(rank, message)
        except TimeoutError:
            reason = f"party {rank} fell silent"
            raise
        except ProtocolError:
            reason = f"party {rank} said what it must not"
            raise
        finally:
            beating.cancel()
            self._desk.end(reason)
            self._leader.left(rank, reason)

    def _from_follower(self, rank: int, message: msgspec.Struct) -> None:
        assert self._leader is not None
        match message:
            case Beat():
                pass
            case Stocked():
                self._leader.stocked(rank, message.shelf)
            case Prepared() | Joined():
                self._leader.answered(rank, message)
            case Broken():
                if message.epoch == self._leader.number:
                    self._leader.broke(message.reason)
            case Ready():
                self._desk.ready(rank, message)
            case _:
                raise ProtocolError("A party sent a message out of turn.")

    async def _serve_dealer(self, line: Line, role: Role) -> None:
        hello = await line.receive(INTRODUCTION_S)
        if not isinstance(hello, Hello) or hello.version != VERSION:
            raise ProtocolError(f"This party speaks version {VERSION}.", hint="Use the same version of Cloister.")
        line.post(self._status())
        try:
            while (message := await line.receive()) is not None:
                match message:
                    case AskStatus():
                        line.post(self._status())
                    case Open() | Put() | Piece() | Run() | Close() if role.kind == "client":
                        await self._desk.receive(line, message)
                    case AskShelf() | Weight() | WeightPiece() | Complete() if role.kind == "provider":
                        self._provider_desk.receive(line, message)
                    case _:
                        raise Unauthorized(f"A {role.kind} may not say this.")
        finally:
            self._desk.gone(line)
            self._provider_desk.gone(line)

    def _status(self) -> Welcome:
        complete = self._shelf.complete
        ready = self._desk.engine is not None
        missing = "" if ready else self._missing()
        return Welcome(
            VERSION,
            self._rank,
            self._config.agreement,
            self._epoch,
            ready,
            model=complete.model if complete else "",
            sessions=self._desk.sessions,
            missing=missing,
            shape=complete.shape if complete else b"",
        )

    def _missing(self) -> str:
        if self._leader is not None:
            return self._leader.missing or "engines are starting"
        if not self._following.connected:
            return "not connected: party 0"
        return "engines are starting" if self._shelf.complete else "weights are not dealt"
