"""The commands of a cloud on one machine: all end with this process."""

import ctypes
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from threading import Thread
from typing import IO

import typer

from cloister.config import DEVELOPMENT_KEY
from cloister.errors import SetupError
from cloister.process.hardening import PR_SET_PDEATHSIG

_STOP_S = 20.0
_libc = ctypes.CDLL(None)
Say = Callable[[str], None]


class Parts:
    """The last one started ends first. What they say is shown behind their names."""

    def __init__(self, stack: ExitStack, say: Say = typer.echo, environment: Mapping[str, str] | None = None) -> None:
        self._stack, self._say = stack, say
        self._running: dict[str, subprocess.Popen[str]] = {}
        key = os.environ.get("CLOISTER_API_KEY") or DEVELOPMENT_KEY
        self.environment = {**os.environ, "CLOISTER_API_KEY": key, **(environment or {})}

    def start(self, name: str, words: Sequence[str], ready: str) -> str:
        """What `ready` finds in the command's output, once it is there."""
        process = begin(command(words), self.environment, subprocess.PIPE)
        self._running[name] = process
        self._stack.callback(end, process)
        assert process.stdout is not None
        for line in process.stdout:
            self._say(f"{name:7} {line.rstrip()}")
            if found := re.search(ready, line):
                Thread(target=self._show, args=(name, process.stdout), daemon=True).start()
                return found[1]
        raise SetupError(f"`cloister {words[0]}` ended before it was ready.", hint="Its last words are above.")

    def run(self, words: Sequence[str]) -> None:
        if subprocess.run(command(words), env=self.environment, stdout=subprocess.DEVNULL, check=False).returncode:
            raise SetupError(f"`cloister {' '.join(words[:2])}` failed.", hint="Its last words are above.")

    def check(self) -> None:
        """SetupError once one of them has ended: then the others end, too."""
        for name, process in self._running.items():
            if process.poll() is not None:
                raise SetupError(f"The {name} ended.", hint="Its last words are above.")

    def _show(self, name: str, output: IO[str]) -> None:
        for line in output:
            self._say(f"{name:7} {line.rstrip()}")


def command(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-P", "-m", "cloister", *words]


def begin(words: Sequence[str], environment: Mapping[str, str], output: int | IO[bytes]) -> subprocess.Popen[str]:
    """Call it in the main thread: the kernel ends the process with the thread that started it."""
    return subprocess.Popen(
        words,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=_end_with_parent,
    )


def end(process: subprocess.Popen[str], *, asked: bool = False) -> None:
    if process.poll() is None and not asked:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _end_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
