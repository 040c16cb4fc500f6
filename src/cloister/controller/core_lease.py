"""Who may compute now, on how many cores: the service, or vaults. `CoreLease` is a pure state machine (events in,
commands out; no sockets, no clocks). `LeaseKeeper` carries its commands out and ends a process that is late.

Two teams of kernel threads on the same cores slow each other down, so heavy work takes turns. Vaults wait, the service
pauses, vaults have the cores for about ROUND_TOKENS of work, then the service computes one step at least
(messages.service.Resume). A turn goes to a vault of the tenant that has had least, so that nobody waits behind all that
another has asked for. Vaults that wait together divide the cores: a thread does most where it waits for no other.
Answering links is light and needs no lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from cloister.errors import ProtocolError
from cloister.fairness import ServiceMeter
from cloister.messages.service import Pause, Resume
from cloister.messages.vault import LeaseCores

ROUND_TOKENS = 512


@dataclass(frozen=True)
class Wish:
    """Work for about so many tokens, for this tenant."""

    tokens: int
    tenant: str


@dataclass(frozen=True)
class Grant:
    """Give this vault so many cores."""

    vault: int
    cores: int


Command = Pause | Resume | Grant


class CoreLease:
    """Never more cores given than there are, never any while the service computes. Within a tenant the first to come is
    the first served."""

    def __init__(self, cores: int) -> None:
        self.holders: dict[int, int] = {}
        """Vaults that compute, and on how many cores."""
        self._cores = cores
        self.service: Literal["absent", "computing", "pausing", "paused"] = "absent"
        self._waiting: dict[int, Wish] = {}
        self._tenants: dict[int, str] = {}
        """Of vaults that wait or compute."""
        self._meter = ServiceMeter()
        self._last = ""
        self._spent = 0

    def want(self, vault: int, tokens: int, tenant: str = "") -> list[Command]:
        if vault in self._tenants:
            raise ProtocolError("A vault asked for cores twice.")
        self._waiting[vault] = Wish(tokens, tenant)
        self._tenants[vault] = tenant
        self._meter.arrive(tenant)
        return self._go_on()

    def done(self, vault: int) -> list[Command]:
        if vault not in self.holders:
            raise ProtocolError("A vault gave back cores it did not have.")
        return self.gone(vault)

    def gone(self, vault: int) -> list[Command]:
        """A vault died, or was given up because it was late, or its work is done."""
        self._waiting.pop(vault, None)
        self.holders.pop(vault, None)
        if (tenant := self._tenants.pop(vault, None)) is not None:
            self._meter.leave(tenant)
        return self._go_on()

    def paused(self) -> list[Command]:
        if self.service != "pausing":
            raise ProtocolError("The service paused unasked.")
        self.service = "paused"
        return self._go_on()

    def service_up(self) -> list[Command]:
        """The service is told to wait if a vault is computing."""
        self._spent = 0
        self.service = "pausing" if self.holders else "computing"
        return [Pause()] if self.service == "pausing" else self._go_on()

    def service_gone(self) -> list[Command]:
        """Vaults need not wait for the service."""
        self.service = "absent"
        return self._go_on()

    def _go_on(self) -> list[Command]:
        if self.service == "pausing":
            return []
        if self.service == "computing":
            if not self._waiting:
                return []
            self.service = "pausing"
            return [Pause()]
        granted = self._grants()
        if self.service == "paused" and not self.holders:
            self._spent = 0
            self.service = "computing"
            return [Resume(), *self._go_on()]
        return granted

    def _grants(self) -> list[Command]:
        granted: list[Command] = []
        free = self._cores - sum(self.holders.values())
        while free and self._waiting and (self.service == "absent" or self._spent < ROUND_TOKENS):
            cores = max(1, free // len(self._waiting))
            vault = min(self._waiting, key=self._turn)
            wish = self._waiting.pop(vault)
            self._meter.charge(wish.tenant, inputs=wish.tokens)
            self._last = wish.tenant
            self._spent += wish.tokens
            self.holders[vault] = cores
            free -= cores
            granted.append(Grant(vault, cores))
        return granted

    def _turn(self, vault: int) -> tuple[int, bool]:
        """The least served tenant comes first; of two that had as much, not the one whose turn it was last."""
        tenant = self._waiting[vault].tenant
        return self._meter.served(tenant), tenant == self._last


class Computes(Protocol):
    """A process that computes when told to."""

    def send(self, message: msgspec.Struct) -> None: ...
    def give_up(self) -> None: ...


class LeaseKeeper:
    """One lease for the service and all vaults."""

    def __init__(self, cores: int, vault_deadline_s: float, service_deadline_s: float) -> None:
        self._lease = CoreLease(cores)
        self._vaults: dict[int, Computes] = {}
        self._service: Computes | None = None
        self._vault_deadline_s = vault_deadline_s
        self._service_deadline_s = service_deadline_s
        self._vault_timers: dict[int, asyncio.TimerHandle] = {}
        self._service_timer: asyncio.TimerHandle | None = None

    def want(self, number: int, vault: Computes, tokens: int, tenant: str) -> None:
        self._vaults[number] = vault
        self._obey(self._lease.want(number, tokens, tenant))

    def done(self, number: int) -> None:
        commands = self._lease.done(number)
        self._vault_timers.pop(number).cancel()
        self._obey(commands)

    def gone(self, number: int) -> None:
        self._vaults.pop(number, None)
        _stop(self._vault_timers.pop(number, None))
        self._obey(self._lease.gone(number))

    def paused(self) -> None:
        commands = self._lease.paused()
        _stop(self._service_timer)
        self._obey(commands)

    def service_up(self, service: Computes) -> None:
        """To be called before the service hears of any work."""
        self._service = service
        self._obey(self._lease.service_up())

    def service_gone(self) -> None:
        self._service = None
        _stop(self._service_timer)
        self._obey(self._lease.service_gone())

    def _obey(self, commands: Iterable[Command]) -> None:
        later = asyncio.get_running_loop().call_later
        for command in commands:
            if isinstance(command, Grant):
                vault = self._vaults[command.vault]
                self._vault_timers[command.vault] = later(self._vault_deadline_s, vault.give_up)
                vault.send(LeaseCores(command.cores))
            elif self._service is not None:
                if isinstance(command, Pause):
                    self._service_timer = later(self._service_deadline_s, self._service.give_up)
                self._service.send(command)


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
