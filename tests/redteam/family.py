"""The processes of a running server, each by what it is."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.served import Server


@dataclass(frozen=True)
class Family:
    """Process ids at one moment. Telling vaults from the service takes root: both are forks of the nursery."""

    controller: int
    gateway: int
    keeper: int
    nursery: int
    service: int
    vaults: tuple[int, ...]

    @classmethod
    def of(cls, server: Server) -> Family:
        controller = psutil.Process(server.process.pid)
        children = controller.children()
        [gateway] = [one for one in children if "cloister.gateway" in one.cmdline()]
        [keeper] = [one for one in children if "cloister.nursery" in one.cmdline()]
        [nursery] = keeper.children()
        sealed = [one.pid for one in nursery.children() if one.status() != psutil.STATUS_ZOMBIE]
        [service] = [pid for pid in sealed if not _answers_a_link(pid)]
        vaults = tuple(pid for pid in sealed if pid != service)
        return cls(controller.pid, gateway.pid, keeper.pid, nursery.pid, service, vaults)

    @property
    def all(self) -> tuple[int, ...]:
        return (self.controller, self.gateway, self.keeper, self.nursery, self.service, *self.vaults)

    def name(self, pid: int) -> str:
        names = {getattr(self, who): who for who in ("controller", "gateway", "keeper", "nursery", "service")}
        return names.get(pid, f"vault {pid}")


def _answers_a_link(pid: int) -> bool:
    """A vault has the event that tells the end of its link's loop; the service has its socket only."""
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if os.readlink(each) == "anon_inode:[eventfd]":
                return True
    return False
