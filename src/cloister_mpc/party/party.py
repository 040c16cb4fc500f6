"""A party, which need not trust the others: each certificate's role has its own messages. It looks into no share."""

import asyncio
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn

from cloister.errors import CloisterError, PartyLost, ProtocolError, SetupError, Unauthorized
from cloister.link.network.address import Address
from cloister.link.network.door import Door
from cloister.process import interpreter
from cloister.process.child import environment
from cloister.process.hardening import die_with_parent, forbid_core_dumps, hide_tracebacks, name_process
from cloister.process.supervisor import cancelled
from cloister_mpc import messages
from cloister_mpc.certificates import Credentials, Role, client_tls, role_of, server_tls
from cloister_mpc.config import PartiesConfig, read_config
from cloister_mpc.connection import Connection, accepted
from cloister_mpc.party.epochs import HELLO_S, Follower, Leader
from cloister_mpc.party.sessions import Sessions
from cloister_mpc.party.weight_store import PROGRAMS, ProviderConnection, WeightStore, program_folder
from cloister_mpc.party.workers import Workers

log = logging.getLogger(__name__)


class Party:
    def __init__(self, config: PartiesConfig, rank: int) -> None:
        place = config.party[rank]
        self._config = config
        self._rank = rank
        own = Credentials(config.path(place.certificate), config.path(place.key))
        authority = config.path(config.authority)
        self._server_tls = server_tls(authority, own)
        limit = config.limits.weights_mib << 20
        self.weights = WeightStore(config.path(place.shelf) if place.shelf else None, limit)
        self._epochs: Leader | Follower = (
            Follower(config, rank, client_tls(authority, own), self) if rank else Leader(config, self)
        )
        self.sessions = Sessions(config, rank, self._epochs.tell)
        self._provider = ProviderConnection(self.weights, self._epochs.weights_changed)
        self._workers: Workers | None = None
        self._epoch = 0
        self._visits: set[asyncio.Task[None]] = set()

    async def serve(self, stop: asyncio.Event) -> None:
        """Opens the port and serves epochs until `stop` is set; then ends all that this party started."""
        address = Address.parse(self._config.party[self._rank].control)
        try:
            listener = address.listen()
        except OSError as reason:
            raise SetupError(
                f"Cannot listen on {address}: {reason.strerror}.", hint="Is another party there?"
            ) from None
        log.info("Party %d listens on %s.", self._rank, address)
        door = Door(listener, self._prove, self._admit)
        tasks = [asyncio.create_task(work) for work in (door.run(), self._epochs.run(), self._watch())]
        try:
            await stop.wait()
        finally:
            listener.close()
            await cancelled(*tasks, *self._visits)
            self.end("a party was stopped")
            self.weights.close()

    # Stages of an epoch.

    async def join(self, key: bytes) -> None:
        self.end("a new epoch begins")
        complete = self.weights.complete
        if complete is None:
            raise PartyLost("There is nothing to join with.")
        place = self._config.party[self._rank]
        programs = program_folder(
            self._config.path(place.programs) if place.programs else self.weights.folder / PROGRAMS
        )
        load = messages.Load(complete.shape, str(self.weights.folder), self.weights.used(), str(programs or ""))
        self._workers = Workers(self._config, self._rank, self.sessions.from_engine, self._broke)
        await self._workers.start(key, load)

    def begin(self, epoch: int) -> None:
        if self._workers is None or self.weights.complete is None:
            return
        self._epoch = epoch
        self.sessions.begin(epoch, self._workers.engine)
        self._provider.begin()

    def end(self, reason: str) -> None:
        self.sessions.end(reason)
        self._provider.end()
        if self._workers is not None:
            self._workers.close()
            self._workers = None

    def _broke(self, reason: str) -> None:
        """A process of this party ended: the epoch is over at all parties."""
        self.sessions.end(reason)  # before results of a broken run could be mistaken for whole ones
        self._epochs.broke(reason)

    async def _watch(self) -> None:
        limits = self._config.limits
        while True:
            await asyncio.sleep(min(1.0, limits.run_silence_s / 4, limits.idle_s / 4))
            if (reason := self.sessions.watch()) is not None:
                self._broke(reason)

    # Connections.

    async def _prove(self, visitor: socket.socket) -> tuple[Connection, Role]:
        connection = Connection(*await accepted(visitor, self._server_tls), messages.FromVisitor)
        try:
            return connection, role_of(connection.tls)
        except CloisterError:
            connection.abort()
            raise

    def _admit(self, visitor: tuple[Connection, Role]) -> None:
        connection, role = visitor
        if len(self._visits) >= self._config.limits.connections:
            log.warning("A connection was turned away: too many.")
            connection.abort()
            return
        task = asyncio.create_task(self._serve_visitor(connection, role))
        self._visits.add(task)
        task.add_done_callback(self._visits.discard)

    async def _serve_visitor(self, connection: Connection, role: Role) -> None:
        try:
            log.info("Connected: %s.", role.uri)
            if role.kind != "party":
                await self._serve_dealer(connection, role)
            elif isinstance(self._epochs, Leader):
                await self._epochs.serve(connection, int(role.name))
            else:
                raise Unauthorized("Parties connect to rank 0 only.")
        except CloisterError as reason:
            log.warning("A connection was ended: %s.", reason.code)
            connection.post(messages.Refused.of(reason))
        except (TimeoutError, OSError) as reason:
            log.warning("A connection was ended: %s.", type(reason).__name__)
        finally:
            connection.close()

    async def _serve_dealer(self, connection: Connection, role: Role) -> None:
        hello = await connection.receive(HELLO_S)
        if not isinstance(hello, messages.Hello) or hello.version != messages.VERSION:
            raise ProtocolError(
                f"This party speaks version {messages.VERSION}.", hint="Use the same version of Cloister."
            )
        connection.post(self._status())
        try:
            while (message := await connection.receive()) is not None:
                if isinstance(message, messages.AskStatus):
                    connection.post(self._status())
                elif role.kind == "client" and isinstance(message, messages.FromClient):
                    await self.sessions.receive(connection, message)
                elif role.kind == "provider" and isinstance(message, messages.FromProvider):
                    self._provider.receive(connection, message)
                else:
                    raise Unauthorized(f"A {role.kind} may not say this.")
        finally:
            self.sessions.gone(connection)
            self._provider.gone(connection)

    def _status(self) -> messages.Welcome:
        complete = self.weights.complete
        ready = self.sessions.engine is not None
        missing = "" if ready else self._epochs.missing or "engines are starting"
        return messages.Welcome(
            messages.VERSION,
            self._rank,
            self._config.agreement,
            self._epoch,
            ready,
            model=complete.model if complete else "",
            sessions=len(self.sessions),
            missing=missing,
            shape=complete.shape if complete else b"",
        )


WITH_PARENT = "--with-parent"


def command(file: Path, rank: int, *, with_parent: bool = False) -> list[str]:
    words = [WITH_PARENT] * with_parent
    return interpreter.python("cloister_mpc.party.party", str(file.absolute()), str(rank), *words)


def become_party(file: Path, rank: int) -> NoReturn:
    os.execve(sys.executable, command(file, rank), environment())


async def serve(config: PartiesConfig, rank: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await Party(config, rank).serve(stop)


def main(arguments: list[str]) -> NoReturn:
    name_process("party")
    hide_tracebacks()
    forbid_core_dumps()
    if WITH_PARENT in arguments:
        die_with_parent()
    rank = int(arguments[1])
    logging.basicConfig(level=logging.INFO, format=f"party {rank}: %(message)s", stream=sys.stderr)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # failed handshakes of unknown peers, with tracebacks
    status = 0
    try:
        asyncio.run(serve(read_config(Path(arguments[0])), rank))
    except CloisterError as reason:
        print(f"party {rank}: Error: {reason.message} {reason.hint or ''}".rstrip(), file=sys.stderr)
        status = 2 if isinstance(reason, SetupError) else 1
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1:])
