"""All parties on one machine, supervised; dealt the model, given no prompt. The machine's owner could read all."""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import threading
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from rich.console import Console

from cloister.config import cache_folder
from cloister.errors import CloisterError, ProtocolError
from cloister.messages.lifecycle import Pong, StartFailed, start_failed
from cloister.messages.types import VERSION
from cloister.models.source import open_folder
from cloister.process import interpreter
from cloister.process.child import environment
from cloister.process.hardening import begin_child
from cloister_mpc.certificates import Keys, Role, fingerprint, make_keys
from cloister_mpc.config import PARTIES, Limits, PartiesConfig, PartyPlace, config_text, read_config
from cloister_mpc.connection import Connection
from cloister_mpc.controller_messages import LocalPartiesReady, StartLocalParties, ToLocalParties
from cloister_mpc.party.party import command
from cloister_mpc.party.weight_store import PROGRAMS
from cloister_mpc.provider.dealing import serve_weights

log = logging.getLogger(__name__)

CONFIG_FILE = "parties.toml"
KEYS = "keys"
_SECONDS_BETWEEN_STARTS = 1.0
_PATIENCE_S = 10.0

PATIENT = Limits(silence_s=120.0, run_silence_s=900.0)
"""A local party that dies is seen to die; one that is silent may just wait for a core."""


def make_local(folder: Path, *, hosts: tuple[str, ...] = (), limits: Limits | None = None) -> PartiesConfig:
    """Keys and settings in `folder`, on free ports; existing ones are used as they are."""
    file = folder / CONFIG_FILE
    if file.exists():
        return read_config(file)
    make_keys(folder / KEYS)
    hosts = hosts or ("127.0.0.1",) * PARTIES
    places = []
    ports = free_ports(2 * PARTIES)
    for rank, (control, link) in enumerate(zip(ports[:PARTIES], ports[PARTIES:], strict=True)):
        name = Role("party", str(rank)).file_name
        places.append(
            PartyPlace(
                control=f"{hosts[rank]}:{control}",
                link=f"{hosts[rank]}:{link}",
                certificate=f"{KEYS}/{name}.crt",
                key=f"{KEYS}/{name}.key",
                fingerprint=fingerprint(folder / KEYS / f"{name}.crt"),
                shelf=f"shelf-{rank}",
                programs=str(local_programs()),
            )
        )
    config = PartiesConfig(authority=f"{KEYS}/ca.crt", party=tuple(places), limits=limits or Limits())
    file.write_text(config_text(config))
    return read_config(file)


def local_programs() -> Path:
    """Where all local parties keep what they compiled: they have one owner, and need to compile it but once."""
    return (cache_folder() / "mpc" / PROGRAMS).absolute()


class Supervisor:
    """Keeps one process per party running; one that ends is started again."""

    def __init__(self, file: Path, *, logs: Path | None = None, before: dict[int, list[str]] | None = None) -> None:
        """`logs`: folder for the parties' output, else it goes to ours; `before`: put before a party's command."""
        self._file = file
        self._logs = logs
        self._before = before or {}
        self._stopping = threading.Event()
        self._stack = ExitStack()
        self.processes = [self._start(rank) for rank in range(PARTIES)]
        self._threads = [threading.Thread(target=self._keep, args=(rank,), daemon=True) for rank in range(PARTIES)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._stopping.set()
        for process in self.processes:
            _end(process)
        for thread in self._threads:
            thread.join()
        self._stack.close()

    def _keep(self, rank: int) -> None:
        while True:
            status = self.processes[rank].wait()
            if not self._stopping.is_set():
                log.warning("Party %d ended (%d); starting it again.", rank, status)
            if self._stopping.wait(_SECONDS_BETWEEN_STARTS):
                return
            self.processes[rank] = self._start(rank)

    def _start(self, rank: int) -> subprocess.Popen[bytes]:
        party = command(self._file, rank, with_parent=True)
        output = self._stack.enter_context((self._logs / f"party-{rank}.log").open("ab")) if self._logs else None
        return subprocess.Popen(
            [*self._before.get(rank, []), *party],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment(),
            pass_fds=interpreter.inherited(),
            start_new_session=True,  # Ctrl-C is ours to pass on
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGCONT)
        process.terminate()
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def main() -> None:
    asyncio.run(serve(begin_child("parties")))


async def serve(controller: socket.socket) -> None:
    connection = Connection(*await asyncio.open_connection(sock=controller), ToLocalParties)
    asked = await connection.receive()
    if not isinstance(asked, StartLocalParties):
        return
    place = Path(asked.folder)
    logs = place / "logs"
    logs.mkdir(mode=0o700)
    try:
        if asked.version != VERSION:
            raise ProtocolError("The controller is of another version.")
        config = make_local(place, limits=PATIENT)
    except CloisterError as reason:
        connection.post(start_failed(reason, "The parties cannot start"))
        return
    hung_up = asyncio.create_task(_until_hung_up(connection))
    with closing(Supervisor(place / CONFIG_FILE, logs=logs)):
        dealing = asyncio.create_task(_deal(asked, place, config))
        await asyncio.wait((dealing, hung_up), return_when=asyncio.FIRST_COMPLETED)
        if dealing.done():
            connection.post(dealing.result())
            await asyncio.wait((hung_up,))  # it may end with an error as well
        else:
            dealing.cancel()


async def _until_hung_up(connection: Connection) -> None:
    while await connection.receive() is not None:
        connection.post(Pong())


async def _deal(asked: StartLocalParties, place: Path, config: PartiesConfig) -> LocalPartiesReady | StartFailed:
    try:
        model = open_folder(Path(asked.path), asked.name)
        await serve_weights(config, Keys(place / KEYS).provider, model, Console(quiet=True))
    except Exception as reason:
        return start_failed(reason, "The model cannot be dealt")
    return LocalPartiesReady(str(place / CONFIG_FILE))


if __name__ == "__main__":
    main()
