"""Finds a process that is stopped (SIGSTOP), hangs or loops: its main loop must answer pings, not a thread beside it.
Time counts while the owner checks: a suspended node finds no process late."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from time import monotonic

LOOK_S = 1.0  # between two checks
MOST_COUNTED_S = 2 * LOOK_S  # for a longer time the owner itself was held up
STOPPED_S = 3.0  # a user may pause and resume it


@dataclass(frozen=True)
class Patience:
    silent_s: float
    ask_every_s: float = 5.0

    def beyond(self, work_s: float) -> "Patience":
        """For a process whose pieces of work may take `work_s`."""
        return replace(self, silent_s=self.silent_s + work_s)


SILENT = {  # service and vault get their work's time too; a kind that is not here answers no pings
    "gateway": Patience(30.0),
    "sealed API": Patience(30.0),
    "service": Patience(30.0),
    "vault": Patience(30.0),
    "attention process": Patience(30.0),
    "detector": Patience(10.0),
    "fork server": Patience(30.0),
    "template": Patience(30.0),
    "client": Patience(120.0),
    "parties": Patience(120.0),
}


class Finding(Enum):
    """Of the last two, the reason why the process is ended."""

    FINE = ""
    ASK = "ask"
    STOPPED = "is stopped"
    SILENT = "does not answer"

    def __str__(self) -> str:
        return self.value


class Silence:
    """The rule, without clock or process. `patience` None: it is not pinged, and may be silent."""

    def __init__(self, patience: Patience | None = None) -> None:
        self.patience = patience
        self._stopped_s = 0.0
        self._silent_s = 0.0
        self._asked = False

    def answered(self) -> None:
        self._silent_s = 0.0
        self._asked = False

    def look(self, passed_s: float, *, stopped: bool) -> Finding:
        passed_s = min(max(passed_s, 0.0), MOST_COUNTED_S)
        self._stopped_s = self._stopped_s + passed_s if stopped else 0.0
        self._silent_s += passed_s
        if self._stopped_s >= STOPPED_S:
            return Finding.STOPPED
        if self.patience is None:
            return Finding.FINE
        if self._asked:
            return Finding.SILENT if self._silent_s >= self.patience.silent_s else Finding.FINE
        if self._silent_s < self.patience.ask_every_s:
            return Finding.FINE
        self._asked, self._silent_s = True, 0.0
        return Finding.ASK


class Watchdog:
    def __init__(
        self,
        stopped: Callable[[], bool],
        ask: Callable[[], None],
        late: Callable[[Finding], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._stopped, self._ask, self._late, self._clock = stopped, ask, late, clock
        self._silence = Silence()
        self._looked = clock()
        self._next = self._later()

    def demand_answers(self, patience: Patience) -> None:
        self._silence.patience = patience
        self._silence.answered()

    def answered(self) -> None:
        self._silence.answered()

    def close(self) -> None:
        self._next.cancel()

    def look(self) -> None:
        now = self._clock()
        passed_s, self._looked = now - self._looked, now
        self._next.cancel()
        match self._silence.look(passed_s, stopped=self._stopped()):
            case Finding.FINE:
                self._next = self._later()
            case Finding.ASK:
                self._next = self._later()
                self._ask()
            case found:
                self._late(found)

    def _later(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(LOOK_S, self.look)
