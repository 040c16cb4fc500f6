"""Measures case by case while there is time, each saved as it ends. Opens no GPU: sessions do."""

from collections.abc import Callable
from contextlib import closing, suppress
from time import monotonic

from cloister_bench.gpu.plan import Case, Plan
from cloister_bench.gpu.results import Results
from cloister_bench.gpu.session import Session, SessionLost
from cloister_bench.suite.measurement import Measurement, Watcher


class Bench(Measurement[Results]):
    """A case in hand is always ended; those that are not begun within the plan's minutes are said."""

    def __init__(
        self,
        results: Results,
        start: Callable[[Case], Session],
        watcher: Watcher,
        save: Callable[[], None],
        clock: Callable[[], float] = monotonic,
        begun: float | None = None,
    ) -> None:
        """`begun`: since when the minutes count, by the clock; compiling the kernels came before."""
        super().__init__(results, watcher, save)
        self._from = clock() if begun is None else begun
        self._plan: Plan = results.plan
        self._start, self._clock = start, clock
        self._session: Session | None = None
        self._shape = ""

    def run(self) -> None:
        cases = self._plan.cases()
        self._watcher.begin("gpu", len(cases))
        try:
            for case in cases:
                if self._clock() - self._from >= 60 * self._plan.minutes:
                    self._results.left_out.append(f"{case.shape}: {case}")
                else:
                    self._watcher.say(f"{case.shape}, {case}")
                    with self._noting(f"{case.shape}: {case}"):
                        self._measure(case)
                self._watcher.advance(f"{case.shape}, {case}")
        finally:
            self._end()
            self._results.seconds = self._elapsed
            self._save()

    def _measure(self, case: Case) -> None:
        if case.part == "transformers":  # another program
            with closing(self._start(case)) as session:
                return self._take(session, case)
        if self._session is None or self._shape != case.shape:
            self._end()
            self._session, self._shape = self._start(case), case.shape
        try:
            self._take(self._session, case)
        except SessionLost:
            self._end()
            raise

    def _take(self, session: Session, case: Case) -> None:
        for row in session.measure(case):
            self._results.add(row)
            self._save()

    def _end(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            with suppress(OSError):
                session.close()
