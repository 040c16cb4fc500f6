"""Linux calls that Python lacks, by name; each raises OSError. Numbers: per architecture (asm-generic/unistd.h)."""

from __future__ import annotations

import ctypes
import os
from functools import cache

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
MAP_FAILED = ctypes.c_void_p(-1).value
PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4
PR_GET_SECCOMP = 21
PR_CAPBSET_READ, PR_CAPBSET_DROP = 23, 24
PR_SET_NO_NEW_PRIVS, PR_GET_NO_NEW_PRIVS = 38, 39
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4


def checked(result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def syscall(name: str, *arguments: int | bytes | ctypes._CArgObject | None) -> int:
    """The system call of this name; integers are passed as full words, as the kernel reads them."""
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    return checked(int(_libc.syscall(ctypes.c_long(number_of(name)), *words)))


def prctl(option: int, second: int = 0, third: int = 0) -> int:
    return syscall("prctl", option, second, third, 0, 0)


def can_map_page(size: int) -> bool:
    address = _libc.mmap(None, size, 0x3, 0x22, -1, 0)
    if address == MAP_FAILED:
        return False
    _libc.munmap(address, size)
    return True


AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_X86_64 = """
    read=0 write=1 open=2 close=3 stat=4 fstat=5 lstat=6 poll=7 lseek=8 mmap=9 mprotect=10 munmap=11 brk=12
    rt_sigaction=13 rt_sigprocmask=14 rt_sigreturn=15 ioctl=16 readv=19 writev=20 access=21 pipe=22 select=23
    sched_yield=24 mremap=25 madvise=28 shmget=29 dup=32 nanosleep=35 getpid=39 socket=41 connect=42 accept=43
    sendto=44 recvfrom=45 sendmsg=46 recvmsg=47 shutdown=48 bind=49 listen=50 getsockname=51 getpeername=52
    socketpair=53 setsockopt=54 getsockopt=55 clone=56 fork=57 vfork=58 execve=59 exit=60 kill=62 uname=63 fcntl=72
    ftruncate=77 creat=85 gettimeofday=96 getrlimit=97 getrusage=98 sysinfo=99 times=100 ptrace=101 getuid=102
    getgid=104 setuid=105 setgid=106 geteuid=107 getegid=108 getppid=110 getgroups=115 getresuid=118 getresgid=120
    capget=125 capset=126 sigaltstack=131 personality=135 mlockall=151 modify_ldt=154 pivot_root=155 prctl=157
    chroot=161 acct=163 mount=165 umount2=166 swapon=167 swapoff=168 reboot=169 sethostname=170 setdomainname=171
    iopl=172 ioperm=173 init_module=175 delete_module=176 gettid=186 tkill=200 time=201 futex=202
    sched_getaffinity=204 epoll_create=213 restart_syscall=219 clock_gettime=228 clock_getres=229
    clock_nanosleep=230 exit_group=231 epoll_wait=232 epoll_ctl=233 tgkill=234 kexec_load=246 add_key=248
    request_key=249 keyctl=250 openat=257 newfstatat=262 pselect6=270 ppoll=271 unshare=272 set_robust_list=273
    epoll_pwait=281 accept4=288 epoll_create1=291 perf_event_open=298 prlimit64=302 name_to_handle_at=303
    open_by_handle_at=304 setns=308 getcpu=309 process_vm_readv=310 process_vm_writev=311 kcmp=312 finit_module=313
    seccomp=317 getrandom=318 memfd_create=319 kexec_file_load=320 bpf=321 execveat=322 userfaultfd=323
    membarrier=324 rseq=334
"""

_AARCH64 = """
    epoll_create1=20 epoll_ctl=21 epoll_pwait=22 dup=23 fcntl=25 ioctl=29 umount2=39 mount=40 pivot_root=41
    ftruncate=46 chroot=51 openat=56 close=57 lseek=62 read=63 write=64 readv=65 writev=66 pselect6=72 ppoll=73
    newfstatat=79 fstat=80 acct=89 capget=90 capset=91 personality=92 exit=93 exit_group=94 unshare=97 futex=98
    set_robust_list=99 nanosleep=101 kexec_load=104 init_module=105 delete_module=106 clock_gettime=113
    clock_getres=114 clock_nanosleep=115 ptrace=117 sched_getaffinity=123 sched_yield=124 restart_syscall=128
    kill=129 tkill=130 tgkill=131 sigaltstack=132 rt_sigaction=134 rt_sigprocmask=135 rt_sigreturn=139 reboot=142
    setgid=144 setuid=146 getresuid=148 getresgid=150 times=153 getgroups=158 uname=160 sethostname=161
    setdomainname=162 getrlimit=163 getrusage=165 prctl=167 getcpu=168 gettimeofday=169 getpid=172 getppid=173
    getuid=174 geteuid=175 getgid=176 getegid=177 gettid=178 sysinfo=179 shmget=194 socket=198 socketpair=199
    bind=200 listen=201 accept=202 connect=203 getsockname=204 getpeername=205 sendto=206 recvfrom=207
    setsockopt=208 getsockopt=209 shutdown=210 sendmsg=211 recvmsg=212 brk=214 munmap=215 mremap=216 add_key=217
    request_key=218 keyctl=219 clone=220 execve=221 mmap=222 swapon=224 swapoff=225 mprotect=226 mlockall=230
    madvise=233 perf_event_open=241 accept4=242 prlimit64=261 name_to_handle_at=264 open_by_handle_at=265 setns=268
    process_vm_readv=270 process_vm_writev=271 kcmp=272 finit_module=273 seccomp=277 getrandom=278 memfd_create=279
    bpf=280 execveat=281 userfaultfd=282 membarrier=283 rseq=293 kexec_file_load=294
"""

_BOTH = """
    pidfd_send_signal=424 io_uring_setup=425 io_uring_enter=426 io_uring_register=427 open_tree=428 move_mount=429
    fsopen=430 fsconfig=431 fsmount=432 fspick=433 pidfd_open=434 clone3=435 close_range=436 openat2=437
    pidfd_getfd=438 process_madvise=440 epoll_pwait2=441 mount_setattr=442 landlock_create_ruleset=444
    landlock_add_rule=445 landlock_restrict_self=446 memfd_secret=447 process_mrelease=448 futex_waitv=449
    open_tree_attr=467
"""


def _table(text: str) -> dict[str, int]:
    return {name: int(number) for name, number in (entry.split("=") for entry in text.split())}


TABLES = {"x86_64": _table(_X86_64 + _BOTH), "aarch64": _table(_AARCH64 + _BOTH)}


@cache
def machine() -> str:
    name = os.uname().machine
    if name not in TABLES:
        raise OSError(f"no table of system calls for {name}")
    return name


def number_of(name: str) -> int:
    return TABLES[machine()][name]


def has(name: str) -> bool:
    """Some calls exist on some architectures only: aarch64 has no fork, for one."""
    return name in TABLES[machine()]
