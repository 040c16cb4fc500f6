"""A sealed process's system calls: computing is allowed, a plain attack ends it, everything else gets EPERM."""

import ctypes
import errno
import os
from functools import cache

from cloister.process.sandbox import kernel
from cloister.process.sandbox.bpf import (
    ALLOW,
    ERRNO,
    KILL_PROCESS,
    Rule,
    assemble,
    equals,
    has_any,
    is_null,
    lacks,
    upper_word,
)
from cloister.process.sandbox.kernel import AUDIT_ARCH, has, machine, number_of, prctl, syscall

_SET_MODE_FILTER, _ALL_THREADS = 1, 1
_PROT_EXEC = 0x4
_MAP_SHARED, _MAP_ANONYMOUS, _MAP_GROWSDOWN = 0x1, 0x20, 0x100
_FUTEX_WAIT, _FUTEX_WAKE, _FUTEX_PRIVATE = 0, 1, 128
_CLONE_THREAD = 0x00010000
_FIONBIO, _FIOCLEX = 0x5421, 0x5451
_F_GETFD, _F_SETFD, _F_GETFL, _F_GET_SEALS = 1, 2, 3, 1034
_AT_EMPTY_PATH = 0x1000
_EPERM = ERRNO | errno.EPERM
_NVIDIA_VERSION = 0x46D2  # an ioctl of the resource manager of NVIDIA's driver (nv-ioctl.h)

_ALLOWED = """
    read write readv writev lseek close fstat shutdown getsockname getpeername getsockopt
    poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2
    sched_yield sched_getaffinity getcpu membarrier rseq munmap madvise brk
    clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time times
    getpid gettid getppid getuid geteuid getgid getegid getresuid getresgid getgroups
    rt_sigreturn rt_sigprocmask rt_sigaction sigaltstack restart_syscall exit exit_group
    getrandom getrlimit getrusage sysinfo uname
"""

_ATTACKS = """
    execve execveat fork vfork ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp
    socket socketpair connect bind listen accept accept4
    io_uring_setup io_uring_enter io_uring_register memfd_create memfd_secret bpf userfaultfd perf_event_open
    mount umount2 pivot_root chroot move_mount open_tree open_tree_attr fsopen fsconfig fsmount fspick mount_setattr
    name_to_handle_at open_by_handle_at unshare setns keyctl add_key request_key
    kexec_load kexec_file_load init_module finit_module delete_module reboot swapon swapoff acct iopl ioperm modify_ldt
    pidfd_open pidfd_getfd pidfd_send_signal kill tkill
"""


def filter_program(*, receives_descriptors: bool, own_pid: int, futexes: int | None) -> bytes:
    """Cached for forks. `futexes`: links' upper address word. No driver may be called: all was mapped before."""
    return _assembled(machine(), receives_descriptors, own_pid, futexes)


@cache
def _assembled(architecture: str, receives_descriptors: bool, own_pid: int, futexes: int | None) -> bytes:
    # First: unlike plain answers, the kernel cannot remember these per call.
    rules = {"futex": _futex(futexes)} | _judged(own_pid)
    rules |= {name: Rule((), ALLOW) for name in _ALLOWED.split()}
    rules |= {name: Rule((), KILL_PROCESS) for name in _ATTACKS.split()}
    if receives_descriptors:
        rules["recvmsg"] = Rule((), ALLOW)
    known = {number_of(name): rule for name, rule in rules.items() if has(name)}
    return assemble(AUDIT_ARCH[architecture], known, default=_EPERM)


def _futex(upper: int | None) -> Rule:
    """A private futex is the process's own. A shared one reaches all that map the memory: so it must be a link's,
    without a second address. No process can wait where robust lists wake."""
    private = (has_any(1, _FUTEX_PRIVATE),)
    shared = () if upper is None else tuple((equals(1, op), upper_word(0, upper)) for op in (_FUTEX_WAIT, _FUTEX_WAKE))
    return Rule((private, *shared), _EPERM)


def _judged(own_pid: int) -> dict[str, Rule]:
    not_executable = lacks(2, _PROT_EXEC)
    harmless = (not_executable, lacks(3, _MAP_GROWSDOWN))
    return {
        # Shared anonymous and growing mappings would be memory that RLIMIT_DATA does not count.
        "mmap": Rule(((*harmless, lacks(3, _MAP_ANONYMOUS)), (*harmless, lacks(3, _MAP_SHARED))), _EPERM),
        "mprotect": Rule(((not_executable,),), _EPERM),
        # An address would let an unconnected socket speak to others.
        "sendto": Rule(((is_null(4),),), _EPERM),
        "recvfrom": Rule(((is_null(4),),), _EPERM),
        "newfstatat": Rule(((equals(3, _AT_EMPTY_PATH),),), _EPERM),
        "ioctl": Rule(tuple((equals(1, command),) for command in (_FIONBIO, _FIOCLEX)), _EPERM),
        "fcntl": Rule(tuple((equals(1, command),) for command in (_F_GETFD, _F_SETFD, _F_GETFL, _F_GET_SEALS)), _EPERM),
        "prlimit64": Rule(((equals(0, 0), is_null(2)),), _EPERM),
        "tgkill": Rule(((equals(0, own_pid),),), KILL_PROCESS),  # abort() signals itself
        # A new process is an attack, a new thread a library's habit. clone3 hides its flags in memory: without it,
        # glibc falls back to clone, which shows them.
        "clone": Rule(((has_any(0, _CLONE_THREAD),),), KILL_PROCESS, granted=_EPERM),
        "clone3": Rule((), ERRNO | errno.ENOSYS),
    }


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def install(receives_descriptors: bool, futexes: int | None) -> bool:
    return _install(filter_program(receives_descriptors=receives_descriptors, own_pid=os.getpid(), futexes=futexes))


def _install(code: bytes) -> bool:
    program = _Program(len(code) // 8, code)
    try:
        refusing_thread = syscall("seccomp", _SET_MODE_FILTER, _ALL_THREADS, ctypes.byref(program))
    except OSError:
        return False
    return refusing_thread == 0


_SERVES = ("accept", "accept4")


@cache
def serving_program(architecture: str) -> bytes:
    """For a process that accepts connections: all but plain attacks, each of which ends it."""
    attacks = set(_ATTACKS.split()) - set(_SERVES)
    rules = {name: Rule((), KILL_PROCESS) for name in attacks}
    rules["clone"] = Rule(((has_any(0, _CLONE_THREAD),),), KILL_PROCESS)
    rules["clone3"] = Rule((), ERRNO | errno.ENOSYS)
    known = {number_of(name): rule for name, rule in rules.items() if has(name)}
    return assemble(AUDIT_ARCH[architecture], known, default=ALLOW)


def install_serving() -> bool:
    return _install(serving_program(machine()))


def installed() -> bool:
    """Asked of a kernel that should no longer answer."""
    try:
        prctl(kernel.PR_GET_SECCOMP)
    except PermissionError:
        return True
    return False


def devices_answer() -> bool:
    """Whether a driver of a GPU could be spoken to: asked of /dev/null, where one would not know the command."""
    try:
        syscall("ioctl", 0, _NVIDIA_VERSION, 0)
    except PermissionError:
        return False
    except OSError:
        return True
    return True
