"""Measures case by case while there is time, each saved as it ends, in sessions: processes that open the GPU, which the
bench itself never does. They speak lines of JSON."""

import json
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from time import monotonic
from typing import Any, NoReturn

import msgspec

from cloister.errors import CloisterError, ServiceUnavailable, where_raised
from cloister.process.hardening import die_with_parent
from cloister_bench.gpu.plan import Case, Plan
from cloister_bench.gpu.results import Results
from cloister_bench.suite.documents import Row
from cloister_bench.suite.measurement import Measurement, Watcher

Measure = Callable[[Case], Iterator[Row]]
SILENT_S = 120.0  # without a row: compiling for transformers takes longest
ENDED_S = 10.0


class SessionLost(ServiceUnavailable):
    """The process that computed is gone: the device is lost, or it hung."""


class Session:
    """Forked now; `prepare` runs in it and returns what measures a case. Silent for too long, it is ended with all it
    has started."""

    def __init__(self, prepare: Callable[[], Measure], silent_s: float = SILENT_S, ended_s: float = ENDED_S) -> None:
        self._ended_s = ended_s
        ours, theirs = socket.socketpair()
        self._pid = os.fork()
        if not self._pid:
            ours.close()
            _serve(theirs, prepare)
        theirs.close()
        ours.settimeout(silent_s)
        self._line, self._file = ours, ours.makefile("rw", encoding="utf-8")

    def measure(self, case: Case) -> Iterator[Row]:
        """Raises SessionLost, or ServiceUnavailable if this case alone failed."""
        try:
            self._file.write(msgspec.json.encode(case).decode() + "\n")
            self._file.flush()
            while True:
                said = json.loads(self._file.readline() or "null")
                if said is None:
                    raise SessionLost("The process that computes has ended.")
                if "lost" in said:
                    raise SessionLost(said["lost"])
                if "failed" in said:
                    raise ServiceUnavailable(said["failed"])
                if "done" in said:
                    return
                yield said["row"]
        except (OSError, ValueError) as failure:
            raise SessionLost(f"The process that computes does not answer ({type(failure).__name__}).") from None

    def close(self) -> None:
        self._file.close()
        self._line.close()
        ended = os.pidfd_open(self._pid)
        select.select([ended], [], [], self._ended_s)
        os.close(ended)
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def _serve(line: socket.socket, prepare: Callable[[], Measure]) -> NoReturn:
    try:
        os.setsid()
        die_with_parent()
        file = line.makefile("rw", encoding="utf-8")

        def say(**said: Any) -> None:
            file.write(json.dumps(said) + "\n")
            file.flush()

        measure = None
        for asked in file:
            try:
                measure = measure or prepare()
                for row in measure(msgspec.json.decode(asked, type=Case)):
                    say(row=row)
                say(done=True)
            except CloisterError as failure:
                say(failed=str(failure))
            except Exception as failure:  # CUDA's errors stay: another process goes on
                say(lost=f"{where_raised(failure)}: {str(failure)[:300]}")
                break
        os._exit(0)
    finally:
        os._exit(1)


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

    def run(self) -> None:
        cases = self._plan.cases()
        self._watcher.begin("gpu", len(cases))
        try:
            for case in cases:
                if self._clock() - self._from >= 60 * self._plan.minutes:
                    self._results.left_out.append(str(case))
                else:
                    self._watcher.say(str(case))
                    with self._noting(str(case)):
                        self._measure(case)
                self._watcher.advance(str(case))
        finally:
            self._end()
            self._results.seconds = self._elapsed
            self._save()

    def _measure(self, case: Case) -> None:
        if case.part == "transformers":  # another program
            self._end()
            with closing(self._start(case)) as session:
                return self._take(session, case)
        self._session = self._session or self._start(case)
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
