"""The parties to a dealer, where the secrets are: deal (`model.programs.dealt`), compute, put results together."""

import asyncio
import secrets
import ssl
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Self, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from cloister.errors import (
    CloisterError,
    PartyLost,
    ProtocolError,
    ServiceUnavailable,
    SetupError,
    Unauthorized,
    error_from_code,
)
from cloister.link.network.address import Address
from cloister.process.supervisor import cancelled
from cloister_mpc import messages
from cloister_mpc.certificates import Credentials, Role, client_tls, require
from cloister_mpc.config import PartiesConfig
from cloister_mpc.connection import Connection

CONNECT_S = 15.0
_POLL_S = 0.5

OnProgress = Callable[[int, int], None]

M = TypeVar("M", bound=msgspec.Struct)


class Parties:
    """Connections to all parties. When one is lost, all sessions are, and `closed` is true."""

    def __init__(self, config: PartiesConfig, connections: Sequence[Connection]) -> None:
        from cloister_mpc.shares import Dealer

        self.config = config
        self.connections = tuple(connections)
        self.dealer = Dealer()
        self._inboxes: dict[bytes | None, tuple[asyncio.Queue[msgspec.Struct], ...]] = {}  # None: of no session
        self._add_inboxes(None)
        self._lost: CloisterError | None = None
        self._asking = asyncio.Lock()
        self._tasks = [asyncio.create_task(self._listen(rank)) for rank in range(len(connections))]

    @classmethod
    async def connect(cls, config: PartiesConfig, own: Credentials, patience_s: float = 0.0) -> Self:
        """Raises where a party does not answer within the patience or is not who it should be."""
        end = asyncio.get_running_loop().time() + patience_s
        tls = client_tls(config.path(config.authority), own)
        while True:
            tries = [_connect(config, rank, tls) for rank in range(len(config.party))]
            made = await asyncio.gather(*tries, return_exceptions=True)
            good = [each[0] for each in made if not isinstance(each, BaseException)]
            failure = next((each for each in made if isinstance(each, BaseException)), None)
            if failure is None:
                return cls(config, good)
            for connection in good:
                connection.abort()
            if not isinstance(failure, PartyLost) or asyncio.get_running_loop().time() > end:
                raise failure
            await asyncio.sleep(_POLL_S / 2)

    @property
    def closed(self) -> bool:
        return self._lost is not None

    async def status(self) -> list[messages.Welcome]:
        async with self._asking:
            self.post(messages.AskStatus())
            return await self.next_of_all(messages.Welcome)

    async def wait_ready(self, patience_s: float) -> list[messages.Welcome]:
        missing = "a party does not answer"
        try:
            async with asyncio.timeout(patience_s):
                status = await self.status()
                while waiting := [each.missing for each in status if not each.ready]:
                    missing = waiting[0]
                    await asyncio.sleep(_POLL_S)
                    status = await self.status()
        except TimeoutError:
            raise ServiceUnavailable(
                f"The parties are not ready: {missing}.", hint="`cloister mpc status` says more."
            ) from None
        return status

    async def open(self, spec: messages.GenerationSpec) -> "PartySession":
        name = secrets.token_bytes(16)
        if self._lost is not None:
            raise self._lost
        self._add_inboxes(name)
        session = PartySession(self, name)
        try:
            self.post(messages.Open(name, spec))
            if len({each.epoch for each in await self.next_of_all(messages.Opened, name)}) != 1:
                raise PartyLost("The parties are between two epochs.", hint="Try again.")
        except BaseException:
            session.forget()
            raise
        return session

    async def close(self) -> None:
        self._lose(ServiceUnavailable("The connection to the parties was closed."))
        await cancelled(*self._tasks)
        await asyncio.gather(*(connection.wait_closed() for connection in self.connections))

    def post(self, message: msgspec.Struct) -> None:
        for connection in self.connections:
            connection.post(message)

    async def deal(
        self, announced: msgspec.Struct, slabs: Iterable[NDArray[np.generic]], piece: Callable[[bytes], msgspec.Struct]
    ) -> None:
        """An announcement for all, then each party's fresh shares, in messages that `piece` makes."""
        from cloister_mpc.shares import content_of, pieces

        for connection in self.connections:
            await connection.send(announced)
        for slab in slabs:
            shares = await asyncio.to_thread(self.dealer.deal, slab)
            for connection, share in zip(self.connections, shares, strict=True):
                for data in pieces(content_of(share)):
                    await connection.send(piece(data))

    async def next(self, rank: int, kind: type[M], session: bytes | None = None) -> M:
        inbox = self._inboxes[session][rank]
        if self._lost is not None and inbox.empty():
            raise self._lost
        message = await inbox.get()
        if isinstance(message, messages.Refused):
            raise _error(message)
        if not isinstance(message, kind):
            raise ProtocolError(f"Party {rank} answered out of turn.")
        return message

    async def next_of_all(self, kind: type[M], session: bytes | None = None) -> list[M]:
        return [await self.next(rank, kind, session) for rank in range(len(self.connections))]

    def forget(self, session: bytes) -> None:
        if self._inboxes.pop(session, None) is not None:
            self.post(messages.Close(session))

    def _add_inboxes(self, session: bytes | None) -> None:
        self._inboxes[session] = tuple(asyncio.Queue() for _ in self.connections)

    async def _listen(self, rank: int) -> None:
        lost: CloisterError = PartyLost(f"Party {rank} was lost.", hint="`cloister mpc status` says which are there.")
        try:
            while (message := await self.connections[rank].receive()) is not None:
                session = getattr(message, "session", None)
                if isinstance(message, messages.Refused) and session is None:
                    lost = _error(message)
                    break
                if session in self._inboxes:
                    self._inboxes[session][rank].put_nowait(message)
                    if isinstance(message, messages.Refused):  # also for a caller that waits for another party
                        for other, inbox in enumerate(self._inboxes[session]):
                            if other != rank:
                                inbox.put_nowait(message)
        except CloisterError:
            lost = PartyLost(f"Party {rank} said what it must not.", hint="Nothing was revealed to the others.")
        self._lose(lost)

    def _lose(self, reason: CloisterError) -> None:
        if self._lost is not None:
            return
        self._lost = reason
        refusal = messages.Refused.of(reason)
        for inboxes in self._inboxes.values():
            for inbox in inboxes:
                inbox.put_nowait(refusal)
        for connection in self.connections:
            connection.close()


class PartySession:
    """One generation: deal, then run, then deal again; never two at once."""

    def __init__(self, parties: Parties, name: bytes) -> None:
        self._parties = parties
        self._name = name
        self._runs = 0

    async def deal(self, name: str, values: NDArray[np.generic]) -> None:
        head = messages.ShareHead(name, values.dtype.name, values.shape)  # type: ignore[arg-type]
        try:
            await self._parties.deal(messages.Put(self._name, head), (values,), partial(messages.Piece, self._name))
        except OSError:
            raise PartyLost("A party was lost while it was dealt to.", hint="Try again.") from None

    def forget(self) -> None:
        self._parties.forget(self._name)

    async def run(
        self, kind: messages.RunKind, at: int = 0, columns: int = 1, on_progress: OnProgress | None = None
    ) -> NDArray[np.generic]:
        """The prompt's pass, or generated tokens' from position `at` on; the answer is for us alone."""
        from cloister_mpc.shares import share_of

        self._parties.post(messages.Run(self._name, self._runs, kind, at, columns))
        results = []
        for rank in range(len(self._parties.connections)):
            while True:
                message = await self._parties.next(rank, messages.Progress | messages.Result, self._name)  # type: ignore[arg-type]
                if isinstance(message, messages.Result):
                    break
                if rank == 0 and on_progress is not None:
                    on_progress(message.done, message.total)
            results.append((message, await self._content(rank, message)))
            await self._parties.next(rank, messages.Done, self._name)
        self._runs += 1
        first = results[0][0]
        if any((each.head, each.storage) != (first.head, first.storage) for each, _ in results):
            raise PartyLost("The parties' shares of a result do not fit together.")
        return self._parties.dealer.join([share_of(first.head, first.storage, content) for _, content in results])

    async def _content(self, rank: int, result: messages.Result) -> bytes:
        from cloister_mpc.shares import result_size

        if result.size != result_size(result.head, result.storage):
            raise ProtocolError(f"Party {rank} announced a share of another size.")
        content = b""
        while len(content) < result.size:
            content += (await self._parties.next(rank, messages.Piece, self._name)).data
        if len(content) != result.size:
            raise ProtocolError(f"Party {rank} sent more than it announced.")
        return content


class PartyState(msgspec.Struct, frozen=True):
    """`problem`: why it is not ready."""

    rank: int
    address: str
    ready: bool
    problem: str = ""
    model: str = ""
    epoch: int = 0
    sessions: int = 0


async def ask_all(config: PartiesConfig, own: Credentials) -> list[PartyState]:
    """Every party's state; those that cannot be reached are in the answer too."""
    tls = client_tls(config.path(config.authority), own)

    async def ask(rank: int) -> PartyState:
        address = config.party[rank].control
        try:
            connection, said = await _connect(config, rank, tls)
        except CloisterError as reason:
            return PartyState(rank, address, False, reason.message)
        connection.abort()
        return PartyState(rank, address, said.ready, said.missing, said.model, said.epoch, said.sessions)

    return list(await asyncio.gather(*(ask(rank) for rank in range(len(config.party)))))


async def _connect(config: PartiesConfig, rank: int, tls: ssl.SSLContext) -> tuple[Connection, messages.Welcome]:
    """A connection to one party, and its Welcome. Checks its certificate, version and settings."""
    place = config.party[rank]
    address = Address.parse(place.control)
    where = f"Party {rank} ({address})"
    try:
        connection = await Connection.open(address, tls, messages.ToDealer, CONNECT_S)
    except ssl.SSLError:
        raise Unauthorized(f"{where} and we have no authority in common.", hint="Compare the keys' folders.") from None
    except (TimeoutError, OSError):
        raise PartyLost(f"{where} cannot be reached.", hint="Start it: `cloister mpc party --rank …`.") from None
    try:
        require(connection.tls, Role("party", str(rank)), place.fingerprint)
        connection.post(messages.Hello(messages.VERSION))
        welcome = await connection.receive(CONNECT_S)
        if welcome is None:
            raise Unauthorized(f"{where} refuses our certificate.", hint="It must be of the parties' own authority.")
        if isinstance(welcome, messages.Refused):
            raise _error(welcome)
        if not isinstance(welcome, messages.Welcome) or welcome.version != messages.VERSION or welcome.rank != rank:
            raise ProtocolError(f"{where} speaks another language.", hint="Use the same version of Cloister.")
        if welcome.agreement != config.agreement:
            raise SetupError(f"{where} has other settings than ours.", hint="All need the same file.")
    except TimeoutError:
        connection.abort()
        raise PartyLost(f"{where} does not answer.") from None
    except BaseException:
        connection.abort()
        raise
    return connection, welcome


def _error(refused: messages.Refused) -> CloisterError:
    return error_from_code(refused.code, refused.message, hint=refused.hint or None)
