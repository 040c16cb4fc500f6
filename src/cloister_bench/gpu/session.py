"""A process that computes on the GPU for the bench, which never opens it itself. They speak lines of JSON.
One that is silent for too long is ended with all it has started."""

import json
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NoReturn

import msgspec

from cloister.errors import CloisterError, ServiceUnavailable, where_raised
from cloister.process.hardening import die_with_parent
from cloister_bench.gpu.plan import Case

Row = dict[str, Any]
Measure = Callable[[Case], Iterator[Row]]
SILENT_S = 120.0  # without a row: compiling for transformers takes longest
ENDED_S = 10.0


class SessionLost(ServiceUnavailable):
    """The process that computed is gone: the device is lost, or it hung."""


class Session:
    """Forked now. `prepare` runs in it, before it is asked for anything, and returns what measures a case."""

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
