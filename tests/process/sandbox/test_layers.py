"""Each layer earns its place: with it a check is green, without it the same check is red.

Layers overlap on purpose, so a check first takes away those that would hide the one under test.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from cloister.errors import SandboxIncomplete
from cloister.process.sandbox import seal as seal_module
from cloister.process.sandbox import seccomp
from cloister.process.sandbox.kernel import PR_GET_NO_NEW_PRIVS, prctl, syscall
from cloister.process.sandbox.layers import BEST_EFFORT, NAMESPACES, Layer, Profile, Report
from tests.process.sandbox import attempts
from tests.process.sandbox.node import DATA_BYTES, Inhabitants, Outcome, Setting, User, attempt_inside

FILTERS = frozenset({Layer.SECCOMP, Layer.LANDLOCK})
CANARY = "CLOISTER_CANARY"


@dataclass(frozen=True)
class Check:
    """`holds` judges the outcome of an attempt made with all layers but `hiding`."""

    attempt: Callable[[Any], Any]
    holds: Callable[[Outcome], bool]
    hiding: frozenset[Layer] = frozenset()
    leak: Callable[[], Any] = lambda: None
    observe: Callable[[Inhabitants], Any] = lambda _: None

    def outcome(self, user: User, without: frozenset[Layer] = frozenset()) -> Outcome:
        setting = Setting(user=user, without=self.hiding | without, leak=self.leak)
        outcome = attempt_inside(self.attempt, setting, self.observe)
        assert not outcome.others, outcome.others
        return outcome


def nothing(_: Any) -> None:
    return None


def descriptor_of_forkserver() -> int:
    return os.open("/proc/self/ns/uts", os.O_RDONLY)


def listening_neighbour() -> str:
    """An abstract socket in the fork server's network namespace."""
    name = f"cloister-test-{os.getpid()}"
    neighbour = socket.socket(socket.AF_UNIX)
    neighbour.bind(f"\0{name}")
    neighbour.listen()
    os.dup2(neighbour.fileno(), 1000)
    return name


def connect_to_neighbour(name: str) -> None:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(f"\0{name}")


def shared_memory_of_forkserver() -> int:
    return syscall("shmget", 0, 4096, 0o1666)


def look_at_shared_memory(identifier: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.shmctl(identifier, 2, ctypes.byref((ctypes.c_char * 512)())) < 0:
        raise OSError(ctypes.get_errno(), "shmctl")


def environment_from_outside(people: Inhabitants) -> str:
    with open(f"/proc/{people.child}/environ", "rb") as file:
        return file.read().decode(errors="replace")


def readable_for_its_user(people: Inhabitants) -> bool:
    """Whether another process of the child's user can look into it."""
    with open(f"/proc/{people.child}/status") as file:
        uid = int(next(line for line in file if line.startswith("Uid:")).split()[1])
    reader = os.fork()
    if not reader:
        readable = False
        try:
            os.setresuid(uid, uid, uid)
            environment_from_outside(people)
            readable = True
        finally:
            os._exit(0 if readable else 1)
    return os.waitpid(reader, 0)[1] == 0


def dies_with_forkserver(people: Inhabitants) -> bool:
    child = os.pidfd_open(people.child)
    os.kill(people.forkserver, signal.SIGKILL)
    died = bool(select.select([child], [], [], 3)[0])
    if not died:
        signal.pidfd_send_signal(child, signal.SIGKILL)
    os.close(child)
    return died


CHECKS = {
    Layer.USER_NAMESPACE: Check(
        attempts.enter_namespace,
        lambda outcome: not outcome.succeeded,
        frozenset({Layer.SECCOMP, Layer.CAPABILITIES, Layer.CLOSED_DESCRIPTORS}),
        leak=descriptor_of_forkserver,
    ),
    Layer.NETWORK_NAMESPACE: Check(
        connect_to_neighbour, lambda outcome: not outcome.succeeded, FILTERS, leak=listening_neighbour
    ),
    Layer.PID_NAMESPACE: Check(attempts.signal_parent, lambda outcome: not outcome.succeeded, FILTERS),
    Layer.MOUNT_NAMESPACE: Check(lambda _: os.listdir("/"), lambda outcome: outcome.result == [], FILTERS),
    Layer.IPC_NAMESPACE: Check(
        look_at_shared_memory, lambda outcome: not outcome.succeeded, FILTERS, leak=shared_memory_of_forkserver
    ),
    Layer.UTS_NAMESPACE: Check(lambda _: os.uname().nodename, lambda outcome: outcome.result == "cloister"),
    Layer.EMPTY_ROOT: Check(lambda _: os.listdir("/"), lambda outcome: outcome.result == [], FILTERS),
    Layer.CAPABILITIES: Check(
        lambda _: syscall("sethostname", b"changed", 7),
        lambda outcome: not outcome.succeeded,
        frozenset({Layer.SECCOMP}),
    ),
    Layer.NO_NEW_PRIVS: Check(
        lambda _: prctl(PR_GET_NO_NEW_PRIVS), lambda outcome: outcome.result == 1, frozenset({Layer.SECCOMP})
    ),
    Layer.LANDLOCK: Check(attempts.open_for_reading, lambda outcome: not outcome.succeeded, frozenset({Layer.SECCOMP})),
    Layer.CLOSED_DESCRIPTORS: Check(
        os.fstat, lambda outcome: outcome.error == "OSError", leak=descriptor_of_forkserver
    ),
    Layer.CLEAN_ENVIRONMENT: Check(
        lambda _: ctypes.CDLL(None).getenv(CANARY.encode()) or os.environ.get(CANARY),
        lambda outcome: not outcome.result,
        leak=lambda: os.environ.update({CANARY: "1"}),
    ),
    Layer.RLIMITS: Check(lambda _: len(bytes(DATA_BYTES * 2)), lambda outcome: outcome.error == "MemoryError"),
    Layer.NOT_DUMPABLE: Check(nothing, lambda outcome: outcome.seen is False, observe=readable_for_its_user),
    Layer.DEATH_WITH_PARENT: Check(
        nothing, lambda outcome: outcome.seen is True, frozenset({Layer.PID_NAMESPACE}), observe=dies_with_forkserver
    ),
    Layer.SECCOMP: Check(attempts.map_executable, lambda outcome: not outcome.succeeded),
}


def test_every_required_layer_has_a_check() -> None:
    assert set(CHECKS) == set(Layer) - BEST_EFFORT


@pytest.mark.parametrize("layer", CHECKS)
def test_removing_a_layer_turns_its_check_red(layer: Layer, user: User) -> None:
    check = CHECKS[layer]
    assert check.holds(check.outcome(user))
    assert not check.holds(check.outcome(user, without=frozenset({layer})))


@pytest.mark.parametrize("layer", sorted(NAMESPACES))
def test_a_child_shares_no_namespace(layer: Layer, user: User) -> None:
    kind = {Layer.NETWORK_NAMESPACE: "net", Layer.MOUNT_NAMESPACE: "mnt"}.get(layer, layer.removesuffix("_namespace"))

    def namespaces(people: Inhabitants) -> list[str]:
        return [os.readlink(f"/proc/{who}/ns/{kind}") for who in ("self", people.forkserver, people.child)]

    check = Check(nothing, lambda outcome: outcome.succeeded, frozenset({Layer.NOT_DUMPABLE}), observe=namespaces)
    assert len(set(check.outcome(user).seen)) == 3
    assert len(set(check.outcome(user, without=frozenset({layer})).seen)) < 3


def test_limits_alone_stop_new_processes_and_threads(user: User) -> None:
    """Should the filter ever have a gap."""
    for attempt in (attempts.fork, attempts.start_thread):
        check = Check(attempt, lambda outcome: bool(outcome.error), FILTERS)
        assert check.holds(check.outcome(user))
        assert not check.holds(check.outcome(user, without=frozenset({Layer.RLIMITS})))


def test_landlock_and_namespaces_alone_stop_files_sockets_and_signals(user: User) -> None:
    """Should the filter ever have a gap."""
    for attempt in (attempts.open_for_reading, attempts.open_for_writing, attempts.signal_another, attempts.mount):
        check = Check(attempt, lambda outcome: bool(outcome.error), frozenset({Layer.SECCOMP}))
        assert check.holds(check.outcome(user)), attempt


@pytest.mark.parametrize("layer", [Layer.CAPABILITIES, Layer.NO_NEW_PRIVS, Layer.LANDLOCK, Layer.SECCOMP])
def test_threads_from_before_the_seal_are_sealed_too(layer: Layer, user: User) -> None:
    """Linux keeps these per thread."""
    check = CHECKS[layer]
    for without, holds in ((check.hiding, True), (check.hiding | {layer}, False)):
        outcome = attempt_inside(check.attempt, Setting(user=user, without=without, by_older_thread=True))
        assert check.holds(outcome) is holds, outcome


def test_the_stack_no_longer_shows_the_environment() -> None:
    """Strings handed over at exec lie where /proc/PID/environ looks for them: here this process's own."""
    first = next(iter(os.environ))
    check = Check(nothing, lambda outcome: first not in outcome.seen, frozenset({Layer.NOT_DUMPABLE}))
    check = replace(check, observe=environment_from_outside)
    assert check.holds(check.outcome("someone"))
    assert not check.holds(check.outcome("someone", without=frozenset({Layer.CLEAN_ENVIRONMENT})))


def test_locked_memory_is_reported_as_the_kernel_sees_it(user: User) -> None:
    def locked(people: Inhabitants) -> int:
        with open(f"/proc/{people.child}/status") as file:
            return int(next(line for line in file if line.startswith("VmLck")).split()[1])

    outcome = Check(nothing, lambda outcome: outcome.succeeded, observe=locked).outcome(user)
    assert (outcome.seen > 0) == (Layer.MEMORY_LOCK in outcome.applied)
    if Layer.MEMORY_LOCK in outcome.missing:
        pytest.skip("this user may not lock memory (RLIMIT_MEMLOCK)")


@pytest.mark.parametrize("has_devices", [False, True])
def test_nobody_speaks_to_a_driver_and_who_has_devices_says_so(user: User, has_devices: bool) -> None:
    def ask_driver(_: Any) -> None:
        syscall("ioctl", 0, 0xC020462A, 0)

    without = frozenset({Layer.NO_DEVICES}) if has_devices else frozenset[Layer]()
    outcome = attempt_inside(ask_driver, Setting(user=user, without=without))
    assert outcome.error == "PermissionError" and (Layer.NO_DEVICES in outcome.missing) == has_devices
    unfiltered = attempt_inside(ask_driver, Setting(user=user, without=frozenset({Layer.SECCOMP})))
    assert unfiltered.error == "OSError"  # /dev/null knows no such command


def test_a_filter_through_which_a_driver_answers_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seccomp, "install", lambda *_: True)
    monkeypatch.setattr(seccomp, "installed", lambda: True)
    profile = Profile("vault", set(), 0)
    for answers in (False, True):
        monkeypatch.setattr(seccomp, "devices_answer", lambda answers=answers: answers)
        assert seal_module._filter(profile) is not answers


def test_a_report_names_what_is_missing_and_what_to_do() -> None:
    report = Report.of(set(Layer) - {Layer.LANDLOCK, Layer.MEMORY_LOCK})
    assert report.missing == ("landlock", "memory_lock")
    assert report.refused == ("landlock",)
    with pytest.raises(SandboxIncomplete, match=r"landlock\. .*--allow-degraded-sandbox"):
        report.require(allow_degraded=False)
    report.require(allow_degraded=True)
    Report.of(set(Layer) - BEST_EFFORT).require(allow_degraded=False)
