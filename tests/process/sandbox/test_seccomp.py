"""The filter's program, run by a small interpreter: it answers for architectures other than this machine's too."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.process.sandbox import kernel, seccomp
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

EPERM = ERRNO | errno.EPERM
OWN_PID = 7
LINKS = 0x7F1A
Judge = Callable[..., int]


def run(program: bytes, arch: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """Classic BPF, as far as the assembler uses it, over struct seccomp_data."""
    data = struct.pack("<IIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    code = [struct.unpack_from("<HBBI", program, offset) for offset in range(0, len(program), 8)]
    at, accumulator = 0, 0
    while True:
        opcode, when_true, when_false, value = code[at]
        at += 1
        if opcode == 0x06:
            return int(value)
        if opcode == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
            continue
        passed = {0x15: accumulator == value, 0x45: bool(accumulator & value), 0x35: accumulator >= value}[opcode]
        at += when_true if passed else when_false


@pytest.fixture(params=["x86_64", "aarch64"])
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(kernel, "machine", lambda: request.param)
    monkeypatch.setattr(seccomp, "machine", lambda: request.param)
    return str(request.param)


@pytest.fixture
def judge(arch: str) -> Judge:
    programs = {
        service: seccomp.filter_program(receives_descriptors=service, own_pid=OWN_PID, futexes=LINKS)
        for service in (False, True)
    }

    def answer(name: str, *arguments: int, service: bool = False) -> int:
        return run(programs[service], kernel.AUDIT_ARCH[arch], kernel.TABLES[arch][name], arguments)

    return answer


def test_plain_calls(judge: Judge) -> None:
    for name in ("read", "write", "close", "clock_gettime", "exit_group", "munmap", "rt_sigreturn", "brk"):
        assert judge(name) == ALLOW, name
    for name in ("execve", "socket", "ptrace", "kill", "unshare", "io_uring_setup", "memfd_create", "bpf", "mount"):
        assert judge(name) == KILL_PROCESS, name
    for name in ("openat", "prctl", "setuid", "seccomp", "ftruncate", "dup", "setsockopt", "close_range", "mremap"):
        assert judge(name) == EPERM, name


def test_memory_is_never_executable_and_always_counted(judge: Judge) -> None:
    read_write, execute = 3, 4
    private, shared, anonymous, grows = 2, 1, 0x20, 0x100
    assert judge("mmap", 0, 4096, read_write, private | anonymous) == ALLOW
    assert judge("mmap", 0, 4096, read_write, shared) == ALLOW
    assert judge("mmap", 0, 4096, read_write | execute, private | anonymous) == EPERM
    assert judge("mmap", 0, 4096, execute, shared) == EPERM
    assert judge("mmap", 0, 4096, read_write, shared | anonymous) == EPERM
    assert judge("mmap", 0, 4096, read_write, private | anonymous | grows) == EPERM
    assert judge("mprotect", 0, 4096, read_write) == ALLOW
    assert judge("mprotect", 0, 4096, read_write | execute) == EPERM


def test_only_words_of_links_are_shared_futexes(judge: Judge, arch: str) -> None:
    link, elsewhere = LINKS << 32 | 0x40, (LINKS + 1) << 32 | 0x40
    wait, wake, private, realtime = 0, 1, 128, 256
    for op in (wait, wake):
        assert judge("futex", link, op) == judge("futex", (LINKS + 1 << 32) - 4, op) == ALLOW
        for outside in (elsewhere, (LINKS << 32) - 4, 0x40):
            assert judge("futex", outside, op) == EPERM
        assert judge("futex", 1 << 56 | link, op) == EPERM, "a tagged pointer"
        assert judge("futex", link, op | realtime) == EPERM
    for op in range(2, 16):  # requeueing and waking have a second address, owned futexes their own ways to wake
        assert judge("futex", link, op) == EPERM, op
    for op in range(16):
        assert judge("futex", elsewhere, op | private) == judge("futex", elsewhere, op | private | realtime) == ALLOW
    assert judge("futex_waitv", link) == judge("set_robust_list") == EPERM
    closed = seccomp.filter_program(receives_descriptors=False, own_pid=OWN_PID, futexes=None)
    answers = [run(closed, kernel.AUDIT_ARCH[arch], kernel.TABLES[arch]["futex"], (link, op)) for op in (0, 1, 128)]
    assert answers == [EPERM, EPERM, ALLOW]


def test_new_threads_are_refused_and_new_processes_end_it(judge: Judge) -> None:
    thread, vfork = 0x003D0F00, 0x4111
    assert judge("clone", thread) == EPERM
    assert judge("clone", 17) == judge("clone", vfork) == KILL_PROCESS
    assert judge("clone3") == ERRNO | errno.ENOSYS


def test_only_itself_may_be_signalled(judge: Judge) -> None:
    assert judge("tgkill", OWN_PID, 3, 6) == ALLOW
    assert judge("tgkill", OWN_PID + 1, 3, 6) == KILL_PROCESS


def test_only_the_service_receives_descriptors(judge: Judge) -> None:
    assert judge("recvmsg") == EPERM
    assert judge("recvmsg", service=True) == ALLOW
    assert judge("sendmsg") == judge("sendmsg", service=True) == EPERM


def test_nobody_speaks_to_a_driver(judge: Judge) -> None:
    """A GPU's neither, through which memory that is mapped to be read could be mapped again to be written."""
    drivers = (0xC020462A, 0xC030462B, 0xC90046C8, 0xC23046D7, 0x46D2, 0x00, 0x19, 0x21, 0x4B, 0x30000001, 0x30000002)
    tty, inject, network, block = 0x5401, 0x5412, 0x8912, 0x1260
    for command in (*drivers, tty, inject, network, block):
        assert judge("ioctl", 3, command) == judge("ioctl", 3, command, service=True) == EPERM, hex(command)
    nonblocking = 0x5421
    assert judge("ioctl", 3, nonblocking) == ALLOW


def test_no_address_may_be_given(judge: Judge) -> None:
    assert judge("sendto", 3, 0x1000, 8, 0, 0, 0) == ALLOW
    assert judge("sendto", 3, 0x1000, 8, 0, 0x1000, 16) == EPERM
    assert judge("sendto", 3, 0x1000, 8, 0, 1 << 32, 16) == EPERM, "a pointer has a high word"


def test_limits_may_be_read_and_not_set(judge: Judge) -> None:
    assert judge("prlimit64", 0, 7, 0, 0x1000) == ALLOW
    assert judge("prlimit64", 0, 7, 0x1000, 0) == EPERM
    assert judge("prlimit64", 9, 7, 0, 0x1000) == EPERM


def test_another_architecture_ends_the_process(judge: Judge, arch: str) -> None:
    program = seccomp.filter_program(receives_descriptors=True, own_pid=OWN_PID, futexes=LINKS)
    i386 = 0x40000003
    assert run(program, i386, kernel.TABLES[arch]["read"]) == KILL_PROCESS
    assert run(program, kernel.AUDIT_ARCH[arch], 0x40000000 | kernel.TABLES[arch]["read"]) == KILL_PROCESS


@given(number=st.integers(0, 1000), arguments=st.tuples(*[st.integers(0, 2**64 - 1)] * 6))
def test_a_call_without_a_rule_is_refused(number: int, arguments: tuple[int, ...]) -> None:
    program = seccomp.filter_program(receives_descriptors=True, own_pid=OWN_PID, futexes=LINKS)
    known = set(kernel.TABLES[kernel.machine()].values())
    answer = run(program, kernel.AUDIT_ARCH[kernel.machine()], number, arguments)
    assert number in known or answer == EPERM


@given(
    arguments=st.tuples(*[st.sampled_from([0, 1, 2, 3, 1 << 32, (1 << 32) | 1])] * 6),
    chosen=st.lists(
        st.lists(
            st.one_of(
                st.tuples(st.just(equals), st.integers(0, 5), st.integers(0, 3)),
                st.tuples(st.just(is_null), st.integers(0, 5)),
                st.tuples(st.just(upper_word), st.integers(0, 5), st.integers(0, 1)),
                st.tuples(st.just(has_any), st.integers(0, 5), st.integers(1, 3)),
                st.tuples(st.just(lacks), st.integers(0, 5), st.integers(1, 3)),
            ),
            max_size=4,
        ).map(tuple),
        max_size=4,
    ).map(tuple),
)
def test_the_assembler_means_what_its_rules_say(
    arguments: tuple[int, ...], chosen: tuple[tuple[tuple[Callable[..., Any], int, *tuple[int, ...]], ...], ...]
) -> None:
    def passes(test: tuple[Callable[..., Any], int, *tuple[int, ...]]) -> bool:
        kind, argument, *value = test
        word = arguments[argument]
        if kind is equals:
            return [word & 0xFFFFFFFF] == value
        if kind is upper_word:
            return [word >> 32] == value
        if kind is is_null:
            return word == 0
        assert kind in (has_any, lacks)
        return bool(word & value[0]) is (kind is has_any)

    rules = tuple(tuple(kind(*values) for kind, *values in tests) for tests in chosen)
    program = assemble(1, {5: Rule(rules, otherwise=EPERM)}, default=KILL_PROCESS)
    expected = ALLOW if any(all(map(passes, tests)) for tests in chosen) else EPERM
    assert run(program, 1, 5, arguments) == expected
    assert run(program, 1, 6, arguments) == KILL_PROCESS
