"""A fork server and one sealed child, for tests: what happens to an attempt made inside?

The test's process forks a fork server (which forks its child) and talks to both over pipes of JSON lines. The child
waits after its seal until the test has looked at it from outside.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from cloister.process.sandbox.kernel import PR_SET_DUMPABLE, prctl
from cloister.process.sandbox.layers import Layer, Profile
from cloister.process.sandbox.namespaces import empty_root, enter_own, fresh_pid_namespace, leave_host
from cloister.process.sandbox.seal import seal

User = Literal["root", "someone"]
SOMEONE = 12345
DATA_BYTES = 64 << 20


@dataclass(frozen=True)
class Setting:
    """How the node is built. `leak` is made in the fork server before its root is emptied, for the attempt."""

    user: User = "someone"
    name: Literal["vault", "service"] = "vault"
    without: frozenset[Layer] = frozenset()
    leak: Callable[[], Any] = lambda: None
    allow_degraded: bool = True
    keep: tuple[int, ...] = ()
    prepare: Callable[[Any], Any] = lambda leaked: leaked
    """What the child makes of the leak before its seal, for the attempt."""
    by_older_thread: bool = False
    """The attempt is made by a thread that was there before the seal, as a vault's kernel threads are."""


@dataclass
class Outcome:
    """What came of an attempt: its result, or the error it raised, or the signal that ended the process."""

    result: Any = None
    error: str | None = None
    errno: int | None = None
    signal: int = 0
    core: bool = False
    applied: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    seen: Any = None
    others: list[str] = field(default_factory=list)

    @property
    def succeeded(self) -> bool:
        return self.error is None and not self.signal

    @property
    def killed_by_filter(self) -> bool:
        return self.signal == signal.SIGSYS


@dataclass(frozen=True)
class Inhabitants:
    """Process ids as the test sees them."""

    keeper: int
    forkserver: int
    child: int


def attempt_inside(
    attempt: Callable[[Any], Any], setting: Setting, observe: Callable[[Inhabitants], Any] = lambda _: None
) -> Outcome:
    """Runs the attempt in a sealed child."""
    if setting.user == "root" and os.geteuid() != 0:
        pytest.skip("the tests do not run as root")
    told_reader, told = os.pipe()
    wait, go = os.pipe()
    keeper = os.fork()
    if not keeper:
        os.close(told_reader)
        os.close(go)
        _as_forkserver(attempt, setting, told, wait)
    os.close(told)
    os.close(wait)
    outcome = Outcome()
    people: dict[str, int] = {"keeper": keeper}
    with open(told_reader) as lines, _ended_at_last(keeper):
        for line in lines:
            message = json.loads(line)
            people |= message.pop("people", {})
            for key, value in message.items():
                setattr(outcome, key, value)
            if "applied" in message:
                outcome.seen = observe(Inhabitants(**people))
                os.close(go)
                go = -1
    if go >= 0:
        os.close(go)
    return outcome


@contextmanager
def _ended_at_last(keeper: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.kill(keeper, signal.SIGKILL)
        os.waitpid(keeper, 0)


def _tell(told: int, **message: Any) -> None:
    os.write(told, json.dumps(message).encode() + b"\n")


def _as_forkserver(attempt: Callable[[Any], Any], setting: Setting, told: int, wait: int) -> None:
    try:
        if setting.user == "someone" and os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(SOMEONE, SOMEONE, SOMEONE)
            os.setresuid(SOMEONE, SOMEONE, SOMEONE)
        leave_host(setting.without - {Layer.USER_NAMESPACE})  # without it the fork server could have none of the others
        prctl(PR_SET_DUMPABLE, 1)  # changing ids cleared it; the child's own layer is to be seen
        _tell(told, people={"forkserver": int(os.readlink("/proc/self"))})
        proc = os.open("/proc", os.O_RDONLY)
        leaked = setting.leak()
        if Layer.EMPTY_ROOT not in setting.without:
            empty_root()
        fresh_pid_namespace()
        child = os.fork()
        if child:
            status = os.waitpid(child, 0)[1]
            ended = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            _tell(told, signal=ended, core=os.WCOREDUMP(status))
        else:
            _as_child(attempt, setting, told, wait, proc, leaked)
    except BaseException as error:
        _tell(told, others=[f"{type(error).__name__}: {error}"])
    finally:
        os._exit(0)


def _as_child(attempt: Callable[[Any], Any], setting: Setting, told: int, wait: int, proc: int, leaked: Any) -> None:
    people = {"child": int(os.readlink("self", dir_fd=proc))}
    enter_own(setting.without)
    thread = ThreadPoolExecutor(1)
    thread.submit(int).result()
    kept = {told, wait, *setting.keep}
    profile = Profile(
        setting.name,
        kept,
        DATA_BYTES,
        without=setting.without,
        allow_degraded=setting.allow_degraded,
    )
    try:
        leaked = setting.prepare(leaked)
        report = seal(profile)
        _tell(told, people=people, applied=report.applied, missing=report.missing)
        os.read(wait, 1)
        _tell(told, result=thread.submit(attempt, leaked).result() if setting.by_older_thread else attempt(leaked))
    except OSError as error:
        _tell(told, error=type(error).__name__, errno=error.errno)
    except BaseException as error:
        _tell(told, error=type(error).__name__)
    os._exit(0)
