"""Finds a process that is there but does nothing: one that was stopped (SIGSTOP), hangs, or turns in a circle.

Its owner looks at it every second. Once the process is ready it is asked (messages.lifecycle.Ping) and answers from its
own loop, between two pieces of work: so a long step is no silence until it exceeds the deadline of its kind, and a
thread that still runs beside a dead loop proves nothing. Whatever else it says counts as an answer too. A stopped
process is found sooner, by what the kernel says of it. What happens then is what happens when it dies.

Time counts only while the owner looked. A node that was suspended, or an owner that had no core for a minute, finds
nobody late because of that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from time import monotonic

LOOK_S = 1.0
"""How often a process is looked at."""
MOST_COUNTED_S = 2 * LOOK_S
"""Between two looks, at most: a longer time is the owner's own."""
STOPPED_S = 3.0
"""A process may be stopped for so long: somebody may have paused and resumed it."""


@dataclass(frozen=True)
class Patience:
    """How long a process may take to answer, and how often it is asked while it does."""

    silent_s: float
    ask_every_s: float = 5.0

    def beyond(self, work_s: float) -> Patience:
        """For a process whose pieces of work may take so long."""
        return replace(self, silent_s=self.silent_s + work_s)


SILENT = {
    "gateway": Patience(30.0),
    "sealed API": Patience(30.0),
    "service": Patience(30.0),
    "vault": Patience(30.0),
    "attention process": Patience(30.0),
    "detector": Patience(30.0),
    "fork server": Patience(30.0),
    "template": Patience(30.0),
    "client": Patience(120.0),
    "parties": Patience(120.0),
}
"""By the kind of process. To a service's and a vault's is added what one piece of their work may take by the settings.
A kind that is not here answers no questions: it lives shortly, or its peer is asked through it (bridges). It is ended
only when it is stopped."""


class Finding(Enum):
    """What a look at a process finds, and why it is ended if it must."""

    FINE = ""
    ASK = "ask"
    STOPPED = "is stopped"
    SILENT = "does not answer"


class Silence:
    """The rule, without clock or process: `look` takes the time that passed and returns what to do.

    `patience` None: it is not asked, and may be as silent as it likes.
    """

    def __init__(self, patience: Patience | None = None) -> None:
        self.patience = patience
        self._stopped_s = 0.0
        self._silent_s = 0.0
        self._asked = False

    def heard(self) -> None:
        """It said something."""
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
    """Looks at one process until it is closed, or until `late` was called, once, with what was found."""

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
        """It is ready: from now on it is asked."""
        self._silence.patience = patience
        self._silence.heard()

    def heard(self) -> None:
        self._silence.heard()

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
