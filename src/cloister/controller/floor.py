"""Who may compute now: the service, or one vault. A pure state machine: events in, commands out.

Two teams of kernel threads on the same cores ruin each other, so heavy work takes turns: vaults wait in line, the
service is asked to pause, vaults take the floor one after the other until about ROUND_TOKENS' worth of work is done,
then the service computes one step at least (messages.service.Resume) before the next round. Answering links is light
and needs no floor. The machine knows neither sockets nor clocks: a holder that dies or is late is reported as `gone`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cloister.errors import ProtocolError
from cloister.messages.service import Pause, Resume

ROUND_TOKENS = 512


@dataclass(frozen=True)
class Grant:
    """Give the floor to this vault."""

    vault: int


Command = Pause | Resume | Grant


class Floor:
    """Never two holders, never a holder while the service computes; first come, first served."""

    def __init__(self) -> None:
        self.holder: int | None = None
        self.service: Literal["absent", "computing", "pausing", "paused"] = "absent"
        self._waiting: dict[int, int] = {}
        self._spent = 0

    def want(self, vault: int, tokens: int) -> list[Command]:
        """A vault has work for all cores."""
        if vault in self._waiting or vault == self.holder:
            raise ProtocolError("A vault asked for the floor twice.")
        self._waiting[vault] = tokens
        return self._go_on()

    def done(self, vault: int) -> list[Command]:
        """The holder has done its piece of work."""
        if vault != self.holder:
            raise ProtocolError("A vault gave back a floor it did not have.")
        self.holder = None
        return self._go_on()

    def gone(self, vault: int) -> list[Command]:
        """A vault died or was given up."""
        self._waiting.pop(vault, None)
        if vault == self.holder:
            self.holder = None
        return self._go_on()

    def paused(self) -> list[Command]:
        """The service has made way."""
        if self.service != "pausing":
            raise ProtocolError("The service paused unasked.")
        self.service = "paused"
        return self._go_on()

    def service_up(self) -> list[Command]:
        """There is a service. Before it hears of any work it is told to wait if a vault is computing."""
        self._spent = 0
        self.service = "computing" if self.holder is None else "pausing"
        return [Pause()] if self.service == "pausing" else self._go_on()

    def service_gone(self) -> list[Command]:
        """There is no service; vaults need not wait for it."""
        self.service = "absent"
        return self._go_on()

    def _go_on(self) -> list[Command]:
        if self.holder is not None or self.service == "pausing":
            return []
        if self.service == "paused" and (not self._waiting or self._spent >= ROUND_TOKENS):
            self._spent = 0
            self.service = "computing"
            return [Resume(), *self._go_on()]
        if not self._waiting:
            return []
        if self.service == "computing":
            self.service = "pausing"
            return [Pause()]
        self.holder = next(iter(self._waiting))
        self._spent += self._waiting.pop(self.holder)
        return [Grant(self.holder)]
