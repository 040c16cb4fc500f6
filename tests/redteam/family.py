"""The processes of a running server, each by what it is."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.served import Server, lives

_ONE_OF_EACH = (
    "controller",
    "edge_code",
    "computing_code",
    "gateway",
    "sealed_api_keeper",
    "sealed_api",
    "keeper",
    "forkserver",
    "service",
)


@dataclass(frozen=True)
class Family:
    """Process ids at one moment. Telling vaults from the service takes root: both are forks of the fork server."""

    controller: int
    edge_code: int
    computing_code: int
    gateway: int
    sealed_api_keeper: int
    sealed_api: int
    keeper: int
    forkserver: int
    service: int
    vaults: tuple[int, ...]
    others: tuple[tuple[int, str], ...]
    """All the rest that the server started, and what each is: the detector and its keeper."""

    @classmethod
    def of(cls, server: Server) -> Family:
        gateway, sealed_api_keeper, keeper = (server.child(role) for role in ("gateway", "sealed-api", "forkserver"))
        [sealed_api] = sealed_api_keeper.children()
        [forkserver] = keeper.children()
        sealed = [one.pid for one in forkserver.children() if lives(one)]
        [service] = [pid for pid in sealed if not _answers_a_link(pid)]
        vaults = tuple(pid for pid in sealed if pid != service)
        code = (gateway.ppid(), keeper.ppid())
        fronts = (gateway.pid, sealed_api_keeper.pid, sealed_api.pid)
        named = {server.process.pid, *code, *fronts, keeper.pid, forkserver.pid, *sealed}
        rest = [one for one in server.children() if one.pid not in named and lives(one)]
        others = tuple((one.pid, f"{one.name().removeprefix('cl-')} {one.pid}") for one in rest)
        return cls(server.process.pid, *code, *fronts, keeper.pid, forkserver.pid, service, vaults, others)

    @property
    def all(self) -> tuple[int, ...]:
        return (*(getattr(self, who) for who in _ONE_OF_EACH), *self.vaults, *dict(self.others))

    def name(self, pid: int) -> str:
        names = {getattr(self, who): who for who in _ONE_OF_EACH} | dict(self.others)
        return names.get(pid, f"vault {pid}")


def _answers_a_link(pid: int) -> bool:
    """A vault has the event that tells the end of its link's loop; the service has its socket only."""
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if os.readlink(each) == "anon_inode:[eventfd]":
                return True
    return False
