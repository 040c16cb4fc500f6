"""All parties on one machine, for trying it out and for tests: keys, settings, processes that are kept running.

It protects nobody from the machine's owner: parties protect each other's secrets only where nobody has them all.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from cloister.errors import SetupError
from cloister.mpc.certificates import Authority, Credentials, Role, fingerprint
from cloister.mpc.config import PARTIES, Beaver, Limits, PartiesConfig, PartyPlace, Protocol, config_text, read_config
from cloister.mpc.process import ALLOW_INSECURE, WITH_PARENT
from cloister.process.child import environment

log = logging.getLogger(__name__)

CONFIG_FILE = "parties.toml"
KEYS = "keys"
_SECONDS_BETWEEN_STARTS = 1.0
_PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class Keys:
    """A folder of keys, as `make_keys` writes it."""

    folder: Path

    def of(self, role: Role) -> Credentials:
        return Credentials(self.folder / f"{role.file_name}.crt", self.folder / f"{role.file_name}.key")

    @property
    def provider(self) -> Credentials:
        return self.of(Role("provider"))

    def client(self, name: str = "clerk") -> Credentials:
        return self.of(Role("client", name))


def make_keys(folder: Path, parties: int, clients: tuple[str, ...] = ("clerk",)) -> Keys:
    """An authority and a certificate for every role, in a folder that must not have any yet."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority = Authority.create(folder)
    roles = [Role("party", str(rank)) for rank in range(parties)]
    for role in (*roles, Role("provider"), *(Role("client", name) for name in clients)):
        if Role.parse(role.uri) != role:
            raise SetupError(f"{role.name!r} is no name for a client.", hint="Letters, digits, '.', '_' and '-'.")
        authority.issue(folder, role)
    return Keys(folder)


def make_local(
    folder: Path,
    protocol: Protocol = "aby3",
    *,
    beaver: Beaver = "multi_party",
    hosts: tuple[str, ...] = (),
    limits: Limits | None = None,
    keep_weights: bool = True,
) -> PartiesConfig:
    """Keys and settings in `folder`, on free ports; those that are there are taken as they are."""
    file = folder / CONFIG_FILE
    if file.exists():
        return read_config(file)
    count = PARTIES[protocol]
    make_keys(folder / KEYS, count)
    hosts = hosts or ("127.0.0.1",) * count
    places = []
    ports = _free_ports(2 * count)
    for rank, (control, link) in enumerate(zip(ports[:count], ports[count:], strict=True)):
        name = Role("party", str(rank)).file_name
        places.append(
            PartyPlace(
                control=f"{hosts[rank]}:{control}",
                link=f"{hosts[rank]}:{link}",
                certificate=f"{KEYS}/{name}.crt",
                key=f"{KEYS}/{name}.key",
                fingerprint=fingerprint(folder / KEYS / f"{name}.crt"),
                shelf=f"shelf-{rank}" if keep_weights else "",
            )
        )
    config = PartiesConfig(
        authority=f"{KEYS}/ca.crt", party=tuple(places), protocol=protocol, beaver=beaver, limits=limits or Limits()
    )
    file.write_text(config_text(config))
    return read_config(file)


class Supervisor:
    """Keeps one process per party running; one that ends is started again."""

    def __init__(
        self,
        file: Path,
        parties: int,
        *,
        logs: Path | None = None,
        before: dict[int, list[str]] | None = None,
        allow_insecure_beaver: bool = False,
    ) -> None:
        """`logs`: where the parties' words go, else to our own; `before`: what is put before a party's command."""
        self._file = file
        self._words = [WITH_PARENT] + [ALLOW_INSECURE] * allow_insecure_beaver
        self._logs = logs
        self._before = before or {}
        self._stopping = threading.Event()
        self._stack = ExitStack()
        self.processes = [self._start(rank) for rank in range(parties)]
        self._threads = [threading.Thread(target=self._keep, args=(rank,), daemon=True) for rank in range(parties)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End all parties, and wait for them."""
        self._stopping.set()
        for process in self.processes:
            _end(process)
        for thread in self._threads:
            thread.join()
        self._stack.close()

    def _keep(self, rank: int) -> None:
        while True:
            status = self.processes[rank].wait()
            if self._stopping.is_set():
                return
            log.warning("Party %d ended (%d); starting it again.", rank, status)
            self._stopping.wait(_SECONDS_BETWEEN_STARTS)
            if self._stopping.is_set():
                return
            self.processes[rank] = self._start(rank)

    def _start(self, rank: int) -> subprocess.Popen[bytes]:
        module = [sys.executable, "-m", "cloister.mpc.process", str(self._file), str(rank), *self._words]
        output = self._stack.enter_context((self._logs / f"party-{rank}.log").open("ab")) if self._logs else None
        return subprocess.Popen(
            [*self._before.get(rank, []), *module],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment(),
            start_new_session=True,  # Ctrl-C is ours to pass on
        )

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGCONT)
        process.terminate()
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]
