"""A server as a process of its own, to be measured: started, waited for, paused while another is measured, stopped.

Knows commands and signals. Its output goes to a file, since a pipe nobody reads would stop it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from types import TracebackType

from cloister.bench.address import ServerAddress
from cloister.bench.load import first_model
from cloister.errors import ServiceUnavailable, SetupError


class ServerProcess:
    """One server in its own process group. Use it in a `with`, and nothing outlives the block."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        address: ServerAddress,
        log: Path,
        *,
        api_key: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.address = address
        self.api_key = api_key
        self._command = list(command)
        self._log = log
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ServerProcess:
        try:
            with self._log.open("wb") as output:
                self._process = subprocess.Popen(
                    self._command, stdout=output, stderr=output, env=self._environment, start_new_session=True
                )
        except OSError as wrong:
            raise SetupError(f"{self.name} cannot be started: {wrong.strerror}.", hint=f"{self._command[0]}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self.resume()
        self._signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=20)
        self._signal(signal.SIGKILL)  # children that did not follow
        self._process.wait()

    @property
    def pid(self) -> int:
        """Its process, which is also its process group."""
        assert self._process is not None
        return self._process.pid

    async def ready(self, timeout_s: float) -> str:
        """Wait until it lists a model; give that model's name."""
        assert self._process is not None
        deadline = perf_counter() + timeout_s
        while self._process.poll() is None and perf_counter() < deadline:
            try:
                return await first_model(self.address, self.api_key, timeout_s=5)
            except ServiceUnavailable:
                await asyncio.sleep(0.5)
        ended = self._process.poll()
        what = f"ended with status {ended}" if ended is not None else f"was not up after {timeout_s:g} s"
        raise ServiceUnavailable(f"{self.name} {what}.", hint=f"Its output is in {self._log}.")

    def pause(self) -> None:
        """Stop its threads where they are: an idle server that polls would take the other's cores."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run again."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)
