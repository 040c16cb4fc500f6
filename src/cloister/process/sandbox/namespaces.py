"""The fork server leaves the host's namespaces and empties its root; every child leaves the fork server's. To return to
a pid namespace its user namespace must own it: so it runs as pid 1 of a new one, and the process that was started stays
as its keeper. A failed step is missing in the report of `seal`."""

import os
import select
import signal
from collections.abc import Callable, Collection
from contextlib import suppress
from time import monotonic, sleep

from cloister.errors import SetupError
from cloister.process.hardening import ENDING, die_with_parent, name_process
from cloister.process.sandbox import layers
from cloister.process.sandbox.credentials import become_nobody, give_up_powers
from cloister.process.sandbox.kernel import PR_GET_DUMPABLE, PR_SET_DUMPABLE, prctl, syscall
from cloister.process.sandbox.layers import NAMESPACES, Layer
from cloister.process.sandbox.resources import close_all_but, hold_null

_FLAGS = {
    Layer.USER_NAMESPACE: 0x10000000,
    Layer.NETWORK_NAMESPACE: 0x40000000,
    Layer.PID_NAMESPACE: 0x20000000,
    Layer.MOUNT_NAMESPACE: 0x00020000,
    Layer.IPC_NAMESPACE: 0x08000000,
    Layer.UTS_NAMESPACE: 0x04000000,
}
_HOST_NAME = b"cloister"
_RDONLY, _NOSUID, _NODEV, _NOEXEC = 0x1, 0x2, 0x4, 0x8
_REMOUNT, _BIND, _REC, _PRIVATE = 0x20, 0x1000, 0x4000, 0x40000
_DETACH = 2
_ANY_DIRECTORY, _ANOTHER_DIRECTORY = b"/proc", b"/usr"
DRIVERS_READ = "/sys"
DRIVERS_NAME_THREADS_IN = "/proc"
MEETING_PLACE = "/meet"  # where a driver finds MPS
_ENDING_S = 1.0
_forkserver_pids: int | None = None
_parent: int = 0


def _alone() -> bool:
    """A thread that was joined may be listed for a moment."""
    end = monotonic() + _ENDING_S
    while len(os.listdir("/proc/self/task")) > 1:
        if monotonic() > end:
            return False
        sleep(0.001)
    return True


def leave_host(without: Collection[Layer] = (), *, shed_root: bool = True) -> None:
    """While it has one thread: sheds root, returns as pid 1 of new namespaces; the caller's process becomes its keeper,
    with nothing open and the child's status. What root alone may read must be imported and open before."""
    global _forkserver_pids
    if not _alone():
        raise SetupError("This process has threads already; a user namespace can only be entered by a lone one.")
    parent = os.getppid()
    if shed_root:
        become_nobody()
    uid, gid = os.geteuid(), os.getegid()
    entered = enter(NAMESPACES.difference(without))
    if Layer.USER_NAMESPACE in entered:
        map_onto_itself(uid, gid)
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)
    if Layer.PID_NAMESPACE in entered:
        _continue_as_first_process()
        _forkserver_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    layers.record(*entered)


def fresh_pid_namespace() -> None:
    """For the fork server, before each os.fork(): the child will be pid 1 of a pid namespace that ends with it."""
    global _parent
    _parent = os.getpid()
    if _forkserver_pids is not None:
        flag = _FLAGS[Layer.PID_NAMESPACE]
        syscall("setns", _forkserver_pids, flag)
        syscall("unshare", flag)


def enter_own(
    without: Collection[Layer] = (), devices: Collection[str] = (), *, meets: bool = False
) -> Callable[[], None]:
    """Before it has threads, which inherit what is settled here. Where there are `devices` it can open them until it
    calls what is returned; then its root is empty. A child that `meets` MPS is known there by its user's id."""
    uid, gid = os.geteuid(), os.getegid()
    if devices:
        see_own_processes()
    layers.forget(NAMESPACES)
    entered = enter(NAMESPACES.difference(without, {Layer.PID_NAMESPACE}))
    if meets and Layer.USER_NAMESPACE in entered:
        map_onto_itself(uid, gid)
    if os.getpid() == 1:
        entered.add(Layer.PID_NAMESPACE)
    if Layer.UTS_NAMESPACE in entered:
        syscall("sethostname", _HOST_NAME, len(_HOST_NAME))
    layers.record(*entered)
    if not root_is_empty():
        layers.forget({Layer.EMPTY_ROOT})
    empty_later: Callable[[], None] = helper_empties_root() if devices else lambda: None
    writable = (*devices, DRIVERS_NAME_THREADS_IN, *(MEETING_PLACE,) * meets) if devices else ()
    give_up_powers(without, writable, (DRIVERS_READ,) if devices else ())
    if Layer.DEATH_WITH_PARENT not in without:
        die_with_parent()
    if os.getppid() not in (0, _parent):
        os._exit(1)  # the fork server ended before it could take us along
    return empty_later


def see_own_processes() -> None:
    """A /proc of the child's own pid namespace: a driver looks there for its threads. Only here is there the power."""
    with suppress(OSError):
        syscall("unshare", _FLAGS[Layer.MOUNT_NAMESPACE])
        syscall("mount", b"none", b"/proc", b"proc", _NOSUID | _NODEV | _NOEXEC, None)


def helper_empties_root() -> Callable[[], None]:
    """It keeps the power over the namespaces, which a library's threads lack, empties the root and ends."""
    reader, writer = os.pipe()
    helper = os.fork()
    if not helper:
        emptied = False
        try:
            os.close(writer)
            die_with_parent()
            if os.read(reader, 1):
                empty_root()
                emptied = root_is_empty()
        finally:
            os._exit(0 if emptied else 1)
    os.close(reader)

    def empty_now() -> None:
        os.write(writer, b"!")
        os.close(writer)
        if os.waitpid(helper, 0)[1] == 0:  # asked there: Landlock lets this process look at nothing
            layers.record(Layer.EMPTY_ROOT)

    return empty_now


def empty_root() -> None:
    """In its own mount namespace, when all it will ever import or open is imported and open."""
    hold_null()
    _change_root(_ANY_DIRECTORY, _NOSUID | _NODEV | _NOEXEC, b"mode=555,size=4k,nr_inodes=1")
    if root_is_empty():
        layers.record(Layer.EMPTY_ROOT)


def root_of_devices(devices: Collection[str], meeting: str = "") -> None:
    """Instead of `empty_root`: `devices`, what their driver reads, `meeting`. A child empties it."""
    hold_null()

    def furnish() -> None:
        for folder in (b"dev", b"proc", b"sys"):
            os.mkdir(folder)
        for path in devices:
            place = path.lstrip("/").encode()
            os.close(os.open(place, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            syscall("mount", path.encode(), place, None, _BIND, None)
        syscall("mount", b"none", b"proc", b"proc", _NOSUID | _NODEV | _NOEXEC, None)
        syscall("mount", b"/sys", b"sys", None, _BIND | _REC, None)
        if meeting:
            os.mkdir(MEETING_PLACE.lstrip("/"))
            syscall("mount", meeting.encode(), MEETING_PLACE.lstrip("/").encode(), None, _BIND, None)

    _change_root(_ANOTHER_DIRECTORY, _NOSUID | _NOEXEC, b"mode=755,size=64k", furnish)


def _change_root(place: bytes, flags: int, options: bytes, furnish: Callable[[], None] = lambda: None) -> None:
    if Layer.MOUNT_NAMESPACE not in layers.held():
        return  # the host's mounts are not ours to change
    try:
        syscall("mount", None, b"/", None, _REC | _PRIVATE, None)
        syscall("mount", b"none", place, b"tmpfs", flags, options)
        os.chdir(place)
        furnish()
        syscall("pivot_root", b".", b".")
        syscall("umount2", b".", _DETACH)  # pivot_root(2): the old root is stacked on the new one at "."
        os.chdir("/")
        syscall("mount", None, b"/", None, _REMOUNT | _RDONLY | flags, None)
    except OSError:
        return


def root_is_empty() -> bool:
    try:
        return os.listdir("/") == [] and os.getcwd() == "/" and bool(os.statvfs("/").f_flag & os.ST_RDONLY)
    except OSError:
        return False


def enter(wanted: Collection[Layer]) -> set[Layer]:
    """Enters what it can of these. All at once, as owning the user namespace is what permits the others."""
    try:
        syscall("unshare", sum(_FLAGS[layer] for layer in wanted))
        return set(wanted)
    except OSError:
        return {layer for layer in Layer if layer in wanted and _unshared(layer)}


def _unshared(layer: Layer) -> bool:
    try:
        syscall("unshare", _FLAGS[layer])
    except OSError:
        return False
    return True


def map_onto_itself(uid: int, gid: int) -> None:
    """In a new user namespace: without a mapping nothing can be mounted, and no namespace created below."""
    lines = (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1"))
    dumpable = prctl(PR_GET_DUMPABLE)
    prctl(PR_SET_DUMPABLE, 1)  # else these files are root's, after root was shed
    for name, line in lines:
        with open(f"/proc/self/{name}", "w") as file:
            file.write(line)
    prctl(PR_SET_DUMPABLE, dumpable)


def _continue_as_first_process() -> None:
    """Forks; the child returns. It notices its keeper's end at any moment: by signal, or by the pipe before that."""
    keeper_lives, held_by_keeper = os.pipe()
    child = os.fork()
    if child:
        _keep(child, held_by_keeper)
    os.close(held_by_keeper)
    die_with_parent()
    if select.select([keeper_lives], [], [], 0)[0]:
        os._exit(1)
    os.close(keeper_lives)


def _keep(child: int, pipe: int) -> None:
    try:
        for number in ENDING:  # sent to all; the controller decides
            signal.signal(number, signal.SIG_IGN)
        name_process("keeper")
        close_all_but({pipe})
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os._exit(status if status >= 0 else 128 - status)
    finally:
        os._exit(1)
