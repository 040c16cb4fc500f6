"""Which processes compute now, on how many cores: the service, or vaults. `CoreLease` is a pure state machine (events
in, commands out); `LeaseKeeper` carries its commands out and ends a process that is late. Two teams of kernel threads
on the same cores slow each other down: vaults have the cores for a round, the service then for one step at least. A
round is small with several active tenants (pace.Pace), but a newcomer's short prompt is not cut; the least served
tenant is next, and vaults that wait together divide the cores. On a device work is done `beside` the service, without
pauses."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from cloister.errors import ProtocolError
from cloister.fairness import LEAST_TOKENS, OUTPUT_WEIGHT, ActiveTenants, Pace, ServiceMeter
from cloister.messages.controller_service import MAX_CHARGES, Pause, Resume
from cloister.messages.controller_vault import LeaseCores

ROUND_TOKENS = 512  # in a round, at most

# A round with several tenants, in service steps of one token: a token takes < 3 times as long as alone.
SHORT_STEPS = 1.75
AT_ONCE_S = 0.005
BESIDE_TOKENS = 2048  # at once beside the service, at most; one piece is always admitted
PIECE_TOKENS = 8  # the cost of a piece of work beside its tokens, since it reads all weights


NOTHING: Mapping[str, int] = {}


@dataclass(frozen=True)
class CoreRequest:
    tokens: int
    tenant: str
    whole: bool = False


@dataclass(frozen=True)
class Grant:
    vault: int
    cores: int
    tokens: int


Command = Pause | Resume | Grant


class CoreLease:
    """Grants at most all cores, and none while the service computes, unless vaults compute `beside` it."""

    def __init__(self, cores: int, size: Callable[[], int] = lambda: ROUND_TOKENS) -> None:
        self._size = size
        self.beside = False  # set before the first vault asks
        self.holders: dict[int, int] = {}  # cores of the vaults that compute
        self._under_way: dict[int, int] = {}  # tokens of each vault that computes beside the service
        self._cores = cores
        self.service: Literal["absent", "computing", "pausing", "paused"] = "absent"
        self._waiting: dict[int, CoreRequest] = {}
        self._tenants: dict[int, str] = {}  # of vaults that wait or compute
        self._cut: set[int] = set()  # vaults whose work was cut up: the rest of it is no newcomer's, however short
        self._meter = ServiceMeter()
        self._last = ""
        self._spent = 0

    def want(self, vault: int, tokens: int, tenant: str = "", *, whole: bool = False) -> list[Command]:
        if vault in self._tenants:
            raise ProtocolError("A vault asked for cores twice.")
        self._waiting[vault] = CoreRequest(tokens, tenant, whole)
        self._tenants[vault] = tenant
        self._meter.arrive(tenant)
        return self._go_on()

    def done(self, vault: int) -> list[Command]:
        if vault not in self.holders:
            raise ProtocolError("A vault gave back cores it did not have.")
        return self._leave(vault)

    def gone(self, vault: int) -> list[Command]:
        self._cut.discard(vault)
        return self._leave(vault)

    def _leave(self, vault: int) -> list[Command]:
        self._waiting.pop(vault, None)
        self.holders.pop(vault, None)
        self._under_way.pop(vault, None)
        if (tenant := self._tenants.pop(vault, None)) is not None:
            self._meter.leave(tenant)
        return self._go_on()

    def paused(self, charged: Mapping[str, int] = NOTHING) -> list[Command]:
        if self.service != "pausing":
            raise ProtocolError("The service paused unasked.")
        self.service = "paused"
        self._meter.merge(charged)
        return self._go_on()

    def service_up(self) -> list[Command]:
        """The service must pause at once if a vault is computing."""
        self._spent = 0
        self.service = "pausing" if self.holders and not self.beside else "computing"
        return [Pause()] if self.service == "pausing" else self._go_on()

    def service_gone(self) -> list[Command]:
        self.service = "absent"
        return self._go_on()

    def _go_on(self) -> list[Command]:
        if self.beside:
            return self._let_in()
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
            return [Resume(self._meter.drain(MAX_CHARGES)), *self._go_on()]
        return granted

    def _grants(self) -> list[Command]:
        """Cores for waiting vaults while some are free, unless the round is over; they share its tokens."""
        granted: list[Command] = []
        free, size = self._cores - sum(self.holders.values()), self._size()
        if self.service != "absent" and self._spent >= size:
            return granted
        while free and self._waiting:
            cores = max(1, free // len(self._waiting))
            vault = min(self._waiting, key=self._turn)
            request = self._waiting.pop(vault)
            most = max(size * cores // self._cores, LEAST_TOKENS)
            new = vault not in self._cut and request.tokens <= self._meter.uncut(request.tenant)
            tokens = request.tokens if request.whole or new else min(request.tokens, most)
            self._cut.discard(vault)
            if tokens < request.tokens:
                self._cut.add(vault)
            self._meter.charge(request.tenant, inputs=PIECE_TOKENS + tokens)
            self._last = request.tenant
            self._spent += PIECE_TOKENS + tokens
            self.holders[vault] = cores
            free -= cores
            granted.append(Grant(vault, cores, tokens))
        return granted

    def _let_in(self) -> list[Command]:
        """A core for waiting vaults while some are free and the device is not full, each for all its tokens."""
        granted: list[Command] = []
        while self._waiting and len(self.holders) < self._cores:
            vault = min(self._waiting, key=self._turn)
            tokens, tenant = self._waiting[vault].tokens, self._waiting[vault].tenant
            if self.holders and sum(self._under_way.values()) + tokens > BESIDE_TOKENS:
                break
            del self._waiting[vault]
            self._meter.charge(tenant, inputs=PIECE_TOKENS + tokens)
            self._last = tenant
            self.holders[vault], self._under_way[vault] = 1, tokens
            granted.append(Grant(vault, 1, tokens))
        return granted

    def _turn(self, vault: int) -> tuple[int, bool]:
        """The least served tenant comes first; of two that are equal, the one that did not have the last turn."""
        tenant = self._waiting[vault].tenant
        return self._meter.served(tenant), tenant == self._last


class Computes(Protocol):
    def send(self, message: msgspec.Struct) -> None: ...
    def abort(self) -> None: ...


class LeaseKeeper:
    """One lease for the service and all vaults. `active`: all tenants with requests, also those computed elsewhere."""

    def __init__(
        self, cores: int, vault_deadline_s: float, service_deadline_s: float, active: ActiveTenants | None = None
    ) -> None:
        self._cores = cores
        self._active = active or ActiveTenants()
        self._pace = Pace(ROUND_TOKENS, SHORT_STEPS)
        self._lease = CoreLease(cores, self._size)
        self._tenants: dict[int, str] = {}
        self._given: dict[int, tuple[Grant, float]] = {}
        self._reading: set[int] = set()
        self._vaults: dict[int, Computes] = {}
        self._service: Computes | None = None
        self._vault_deadline_s, self._service_deadline_s = vault_deadline_s, service_deadline_s
        self._vault_timers: dict[int, asyncio.TimerHandle] = {}
        self._service_timer: asyncio.TimerHandle | None = None
        # When it was resumed, and whether it was asked at once to pause again.
        self._step_begun, self._one_step = 0.0, False

    def compute_beside(self) -> None:
        self._lease.beside = True

    def want(self, number: int, vault: Computes, tokens: int, tenant: str, *, reading: bool = False) -> None:
        """`reading`: the work does not run the model, so its duration is not counted in the pace."""
        commands = self._lease.want(number, tokens, tenant, whole=reading)
        self._vaults[number] = vault
        if reading:
            self._reading.add(number)
        self._tenants[number] = tenant
        self._active.arrive(tenant)
        self._carry_out(commands)

    def done(self, number: int) -> None:
        commands = self._lease.done(number)
        grant, begun = self._given[number]
        if number not in self._reading:
            self._pace.note(grant.tokens, (asyncio.get_running_loop().time() - begun) * grant.cores / self._cores)
        self._leave(number)
        self._carry_out(commands)

    def gone(self, number: int) -> None:
        self._vaults.pop(number, None)
        self._leave(number)
        self._carry_out(self._lease.gone(number))

    def _leave(self, number: int) -> None:
        _stop(self._vault_timers.pop(number, None))
        self._given.pop(number, None)
        self._reading.discard(number)
        if (tenant := self._tenants.pop(number, None)) is not None:
            self._active.leave(tenant)

    def _size(self) -> int:
        return self._pace.short if self._active.several else self._pace.long

    def paused(self, charged: Mapping[str, int] = NOTHING) -> None:
        commands = self._lease.paused(charged)
        _stop(self._service_timer)
        if self._one_step and sum(charged.values()) == OUTPUT_WEIGHT:  # a step of one token
            self._pace.note_between(asyncio.get_running_loop().time() - self._step_begun)
        self._carry_out(commands)

    def service_up(self, service: Computes) -> None:
        self._service = service
        self._carry_out(self._lease.service_up())

    def service_gone(self) -> None:
        self._service = None
        _stop(self._service_timer)
        self._carry_out(self._lease.service_gone())

    def _carry_out(self, commands: Iterable[Command]) -> None:
        loop = asyncio.get_running_loop()
        later = loop.call_later
        for command in commands:
            if isinstance(command, Grant):
                vault = self._vaults[command.vault]
                self._vault_timers[command.vault] = later(self._vault_deadline_s, vault.abort)
                self._given[command.vault] = command, loop.time()
                vault.send(LeaseCores(command.cores, command.tokens))
            elif self._service is not None:
                if isinstance(command, Resume):
                    self._step_begun = loop.time()
                elif isinstance(command, Pause):
                    self._one_step = loop.time() - self._step_begun < AT_ONCE_S
                    self._service_timer = later(self._service_deadline_s, self._service.abort)
                self._service.send(command)


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
