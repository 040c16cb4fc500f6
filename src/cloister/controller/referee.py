"""Carries out what the floor's rules say, and loses patience: with a vault that keeps the floor, with a service that
does not make way. It knows whom to tell, not what is computed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

import msgspec

from cloister.controller.floor import Command, Floor, Grant
from cloister.messages.service import Pause
from cloister.messages.vault import TakeFloor


class Player(Protocol):
    """A process that computes when told to."""

    def send(self, message: msgspec.Struct) -> None: ...
    def give_up(self) -> None: ...


class Referee:
    """One floor for the service and all vaults."""

    def __init__(self, cores: int, vault_deadline_s: float, service_deadline_s: float) -> None:
        self._floor = Floor(cores)
        self._vaults: dict[int, Player] = {}
        self._service: Player | None = None
        self._vault_deadline_s = vault_deadline_s
        self._service_deadline_s = service_deadline_s
        self._vault_timers: dict[int, asyncio.TimerHandle] = {}
        self._service_timer: asyncio.TimerHandle | None = None

    def want(self, number: int, vault: Player, tokens: int) -> None:
        self._vaults[number] = vault
        self._obey(self._floor.want(number, tokens))

    def done(self, number: int) -> None:
        commands = self._floor.done(number)
        self._vault_timers.pop(number).cancel()
        self._obey(commands)

    def gone(self, number: int) -> None:
        self._vaults.pop(number, None)
        _stop(self._vault_timers.pop(number, None))
        self._obey(self._floor.gone(number))

    def paused(self) -> None:
        commands = self._floor.paused()
        _stop(self._service_timer)
        self._obey(commands)

    def service_up(self, service: Player) -> None:
        """To be called before the service hears of any work."""
        self._service = service
        self._obey(self._floor.service_up())

    def service_gone(self) -> None:
        self._service = None
        _stop(self._service_timer)
        self._obey(self._floor.service_gone())

    def _obey(self, commands: Iterable[Command]) -> None:
        later = asyncio.get_running_loop().call_later
        for command in commands:
            if isinstance(command, Grant):
                vault = self._vaults[command.vault]
                self._vault_timers[command.vault] = later(self._vault_deadline_s, vault.give_up)
                vault.send(TakeFloor(command.cores))
            elif self._service is not None:
                if isinstance(command, Pause):
                    self._service_timer = later(self._service_deadline_s, self._service.give_up)
                self._service.send(command)


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
