"""Child processes: how each is started, and how it is ended for certain."""

import asyncio
import os
import select
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from cloister.process import interpreter
from cloister.process.hardening import WIPE_FREED_MEMORY, signals_held
from cloister.process.log_lines import FOR_PARENT

# The variables that a child inherits: where things are, and in what language.
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR", "CC", "CUDA_VISIBLE_DEVICES")
_PASSED_ON_PREFIXES = ("CLOISTER_", "XDG_")
# Not for processes of a release, whose code is found by its manifest.
_WHERE_CODE_IS = ("LD_LIBRARY_PATH", "PYTHONPATH")


def environment(**more: str) -> dict[str, str]:
    passed = {k: v for k, v in os.environ.items() if k in _PASSED_ON or k.startswith(_PASSED_ON_PREFIXES)}
    if interpreter.running() is not None:
        passed = {k: v for k, v in passed.items() if k not in _WHERE_CODE_IS}
    passed.pop(FOR_PARENT, None)  # its parent reads lines; its own child may write elsewhere
    return {**passed, **more}


_inherited: list[int] = []
_output: list[int] = []


def send_output_to(writer: int) -> None:
    """All children write there what they print, and know that their log lines are read (process.child_lines)."""
    _output[:] = [writer]


def inherit_everywhere(descriptor: int | None) -> None:
    """Under the same number: a model's folder without a path. None: no child inherits one any longer."""
    _inherited[:] = [] if descriptor is None else [descriptor]


def run_module(module: str, peer: socket.socket, *arguments: str, **more_environment: str) -> subprocess.Popen[bytes]:
    command = interpreter.python(module, str(peer.fileno()), *arguments)
    return run_command(command, peer, environment(**more_environment))


def run_command(command: list[str], peer: socket.socket, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """`peer` keeps its number in the child, and is closed here."""
    output = _output[0] if _output else None
    for_parent = {FOR_PARENT: "1"} if _output else {}
    with peer, signals_held():
        return subprocess.Popen(
            command,
            pass_fds=[peer.fileno(), *_inherited, *interpreter.inherited()],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**variables, **for_parent},
        )


class Child:
    """A process forked by another process for us. Its pidfd comes some time after the order; `kill` may come before."""

    def __init__(self) -> None:
        self.pid: int | None = None
        self._pidfd: int | None = None
        self._kill_on_start = False

    def born(self, pidfd: int) -> None:
        self.pid, self._pidfd = _pid_of(pidfd), pidfd
        if self._kill_on_start:
            self.kill()

    @property
    def ended(self) -> bool:
        if self._pidfd is None:
            return self._kill_on_start and self.pid is not None
        gone = select.poll()
        gone.register(self._pidfd, select.POLLIN)
        return bool(gone.poll(0))

    @property
    def stopped(self) -> bool:
        """By SIGSTOP: then it neither runs nor ends by itself."""
        return self.pid is not None and self._pidfd is not None and is_stopped(self.pid)

    def terminate(self) -> None:
        """Before it exists: it ends as soon as it does."""
        if self.pid is None:
            self._kill_on_start = True
        self._signal(signal.SIGTERM)

    def kill(self, wait_s: float = 0.0) -> None:
        """Its memory ends with it. Waits until it has ended, `wait_s` at most."""
        self._kill_on_start = True
        if self._pidfd is not None:
            self._signal(signal.SIGKILL)
            ended = select.poll()  # unlike select, it takes descriptors beyond 1023
            ended.register(self._pidfd, select.POLLIN)
            ended.poll(1000 * wait_s)
            os.close(self._pidfd)
            self._pidfd = None

    def _signal(self, number: int) -> None:
        if self._pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)


class StartedChild(Child):
    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()

    def born(self, pidfd: int) -> None:
        self._loop.add_reader(watched := os.dup(pidfd), self._reap, watched)
        super().born(pidfd)

    def never_born(self) -> None:
        if self.pid is None:
            self._end()

    async def ends(self, patience_s: float | None = None) -> bool:
        await asyncio.wait((self._ended,), timeout=patience_s)
        return self._ended.done()

    def _reap(self, pidfd: int) -> None:
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        self._end()

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)


class ProgramChild(StartedChild):
    """Started by this process; the event loop reaps it when it ends."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        super().__init__()
        self._process = process
        self.born(os.pidfd_open(process.pid))

    def _end(self) -> None:
        self._process.wait()
        super()._end()


class ModuleChild(ProgramChild):
    """`python -m module FD …`."""

    def __init__(self, module: str, peer: socket.socket, *arguments: str, **more_environment: str) -> None:
        super().__init__(run_module(module, peer, *arguments, **more_environment))


class Forks(Protocol):
    def fork(self, entry: str, peer: socket.socket, inherited: Sequence[int]) -> StartedChild: ...


_loaded: dict[str, Forks] = {}


def fork_from(loaded: Mapping[str, Forks]) -> None:
    """From now on `start_module` forks these modules from templates, and executes all others."""
    _loaded.clear()
    _loaded.update(loaded)


def start_module(
    module: str, *arguments: str, wiping: bool = True, **variables: str
) -> tuple[StartedChild, socket.socket]:
    """Also our end of the socket to it. With `wiping`, its freed memory is wiped."""
    ours, theirs = socket.socketpair()
    if module in _loaded:
        return _loaded[module].fork(module, theirs, _inherited), ours
    return ModuleChild(module, theirs, *arguments, **(WIPE_FREED_MEMORY if wiping else {}), **variables), ours


def is_stopped(pid: int) -> bool:
    """By proc(5). A keeper counts as stopped if the process it waits for is (sandbox.namespaces.leave_host)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            head, _, rest = file.read().rpartition(b")")
        if rest.split(maxsplit=1)[0] == b"T":
            return True
        if head.partition(b"(")[2] != b"cl-keeper":
            return False
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return any(is_stopped(int(child)) for child in file.read().split())
    except OSError:  # it has ended, or this kernel does not say
        return False


def _pid_of(pidfd: int) -> int | None:
    with open(f"/proc/self/fdinfo/{pidfd}") as file:
        numbers = [int(line.split()[1]) for line in file if line.startswith("Pid:")]
    return numbers[0] if numbers and numbers[0] > 0 else None
