"""The fork server's life: many children one after the other, and an end that leaves nothing behind."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cloister.process.sandbox.credentials import any_capability
from cloister.process.sandbox.layers import Layer, held
from cloister.process.sandbox.namespaces import (
    MEETING_PLACE,
    empty_root,
    enter_own,
    fresh_pid_namespace,
    leave_host,
    root_of_devices,
)
from cloister.process.sandbox.seal import available_layers
from tests.process.sandbox.node import Inhabitants, Setting, User, attempt_inside


def in_forkserver(work: Callable[[], int]) -> int:
    """The exit status of a fork server that did this work, as its parent sees it."""
    keeper = os.fork()
    if not keeper:
        status = 99
        try:
            leave_host()
            status = work()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(keeper, 0)[1])


def ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 5)[0])


def test_every_child_is_the_first_process_of_its_own() -> None:
    def three_children_at_once() -> int:
        empty_root()
        children = []
        for _ in range(3):
            fresh_pid_namespace()
            child = os.fork()
            if not child:
                enter_own()
                os._exit(40 + os.getpid())
            children.append(child)
        assert os.getpid() == 1 and len(set(children)) == 3
        statuses = {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children}
        return statuses.pop() if len(statuses) == 1 else 98

    assert in_forkserver(three_children_at_once) == 41


def test_a_child_opens_devices_until_its_root_is_empty() -> None:
    """What stands for a device here is /dev/zero."""

    def opens(path: str, flags: int = os.O_RDONLY) -> bool:
        try:
            os.close(os.open(path, flags))
        except OSError:
            return False
        return True

    def child() -> int:
        empty = enter_own(devices=("/dev/zero",))
        named = f"/proc/self/task/{threading.get_native_id()}/comm"
        if not (opens("/dev/zero", os.O_RDWR) and opens(named, os.O_RDWR) and opens("/sys/devices/system/cpu/online")):
            return 1
        if opens("/dev/null") or opens("/etc/passwd") or opens("/") or opens("/sys/kernel/uevent_helper", os.O_RDWR):
            return 2
        empty()
        if opens("/dev/zero") or opens(named) or any_capability():
            return 3
        return 40 + len({Layer.EMPTY_ROOT, Layer.LANDLOCK, Layer.MOUNT_NAMESPACE} & held())

    def forkserver() -> int:
        root_of_devices(("/dev/zero",))
        fresh_pid_namespace()
        forked = os.fork()
        if not forked:
            status = 97
            try:
                status = child()
            finally:
                os._exit(status)
        return os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1])

    assert in_forkserver(forkserver) == 43


@pytest.mark.parametrize("meets", [True, False])
def test_who_meets_others_on_a_device_is_known_there_by_its_user_and_has_the_folder_until_its_root_is_empty(
    meets: bool,
) -> None:
    """As NVIDIA's MPS wants it: credentials that are not the child's own cannot be sent."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
        place = Path(folder)  # not pytest's own, which is its user's alone
        place.chmod(0o777)
        listening.bind(str(place / "control"))
        (place / "control").chmod(0o777)
        listening.listen()

        def child(uid: int, gid: int) -> int:
            empty = enter_own(devices=("/dev/zero",), meets=meets)
            credentials = struct.pack("3i", os.getpid(), uid, gid)
            with socket.socket(socket.AF_UNIX) as caller:
                try:
                    caller.connect(f"{MEETING_PLACE}/control")
                    caller.sendmsg([b"!"], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, credentials)])
                except OSError:
                    return 1
            empty()
            return 2 if os.path.exists(MEETING_PLACE) else 40 + len({Layer.EMPTY_ROOT, Layer.LANDLOCK} & held())

        def forkserver() -> int:
            root_of_devices(("/dev/zero",), str(place))
            fresh_pid_namespace()
            uid, gid = os.getuid(), os.getgid()
            forked = os.fork()
            if not forked:
                status = 97
                try:
                    status = child(uid, gid)
                finally:
                    os._exit(status)
            return os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1])

        assert in_forkserver(forkserver) == (42 if meets else 1)


def test_the_keeper_ends_as_its_forkserver_ended() -> None:
    assert in_forkserver(lambda: 17) == 17


def test_the_keeper_holds_nothing_open() -> None:
    """Else whoever waits for the end of the fork server's connection would wait for the keeper."""
    reader, writer = os.pipe()
    keeper = os.fork()
    if not keeper:
        leave_host()
        os.close(writer)
        time.sleep(60)
        os._exit(0)
    os.close(writer)
    try:
        assert select.select([reader], [], [], 10)[0] and os.read(reader, 1) == b""
        assert os.waitpid(keeper, os.WNOHANG) == (0, 0)
    finally:
        os.kill(keeper, signal.SIGKILL)
        os.waitpid(keeper, 0)
        os.close(reader)


@pytest.mark.parametrize("victim", ["keeper", "forkserver"])
def test_killing_keeper_or_forkserver_ends_all(victim: str, user: User) -> None:
    def kill(people: Inhabitants) -> bool:
        watched = [os.pidfd_open(pid) for pid in (people.forkserver, people.child)]
        os.kill(getattr(people, victim), signal.SIGKILL)
        died = all(ended(pidfd) for pidfd in watched)
        for pidfd in watched:
            os.close(pidfd)
        return died

    assert attempt_inside(lambda _: None, Setting(user=user), kill).seen is True


def test_a_forkserver_with_threads_is_told_so() -> None:
    def late() -> int:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        try:
            leave_host()
        except Exception as error:
            return 5 if "threads" in str(error) else 6
        return 7

    process = os.fork()
    if not process:
        os._exit(late())
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 5


def test_what_this_machine_offers_is_what_a_child_gets(user: User) -> None:
    report = available_layers()
    outcome = attempt_inside(lambda _: None, Setting(user=user))
    assert set(report.refused) == set(outcome.missing) - {"memory_lock", "no_swap"}
    assert len(report.applied) + len(report.missing) == len(set(report.applied) | set(report.missing))
