"""Servers that are measured: running ones, by their address, and processes that are started here."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter, sleep
from typing import Self

from cloister.addresses import HttpAddress
from cloister.config import DEVELOPMENT_KEY
from cloister.errors import ServiceUnavailable
from cloister.files import needed
from cloister.process.hardening import PR_SET_PDEATHSIG
from cloister_bench.connection import first_model, on_free_port


def end_with_parent() -> None:
    """A signal when the thread that started this process has ended, even if it was killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Server:
    """One that runs already. `model` and the `levels` it offers are known once it is ready."""

    model = ""
    levels: tuple[str, ...] = ()

    def __init__(self, name: str, address: HttpAddress, api_key: str | None = None) -> None:
        self.name, self.address, self.api_key = name, address, api_key
        self.user_keys: tuple[str | None, ...] = (api_key,)  # of its users, in turn

    def wait(self, timeout_s: float = 300.0) -> None:
        """Until it lists a model."""
        listed = first_model(self.address, self.api_key, timeout_s=min(timeout_s, 5))
        self.model = listed["id"]
        self.levels = tuple(level["id"] for level in listed.get("protection", ()) if level["enabled"])

    def pause(self) -> None:
        """Stops its threads, where it is ours to stop: an idle server that polls would take the other's cores."""

    def resume(self) -> None: ...


class ServerProcess(Server):
    """Use it in a `with`: nothing outlives the block. Output goes to a file: a pipe without a reader would stop it."""

    def __init__(
        self, name: str, command: Sequence[str], address: HttpAddress, log: Path, api_key: str | None = None
    ) -> None:
        super().__init__(name, address, api_key)
        self._command, self.log = list(command), log
        self._environment = os.environ | ({"CLOISTER_API_KEY": api_key} if api_key else {})
        self._process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        with needed(f"{self.name} cannot be started", self._command[0]), self.log.open("wb") as output:
            self._process = subprocess.Popen(
                self._command,
                stdout=output,
                stderr=output,
                env=self._environment,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.resume()
        self._signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=20)
        self._signal(signal.SIGKILL)  # children that did not follow
        self._process.wait()

    @property
    def pid(self) -> int:
        """Also its process group."""
        return self._process.pid

    def wait(self, timeout_s: float = 300.0) -> None:
        deadline = perf_counter() + timeout_s
        while self._process.poll() is None and perf_counter() < deadline:
            try:
                return super().wait(timeout_s)
            except ServiceUnavailable:
                sleep(0.5)
        ended = self._process.poll()
        what = f"ended with status {ended}" if ended is not None else f"was not up after {timeout_s:g} s"
        raise ServiceUnavailable(f"{self.name} {what}.", hint=f"Its output is in {self.log}.")

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


class OwnServer(ServerProcess):
    def __init__(
        self, model: str | Path | None, logs: Path, arguments: Sequence[str] = (), api_key: str = DEVELOPMENT_KEY
    ) -> None:
        address = on_free_port()
        command = [sys.executable, "-m", "cloister", "serve", "--port", str(address.port)]
        command += [*(["--model", str(model)] if model else []), *arguments]
        super().__init__("cloister serve", command, address, logs / f"serve-{address.port}.log", api_key=api_key)
