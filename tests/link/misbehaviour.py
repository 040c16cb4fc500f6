"""Peers that break the rules on purpose, written straight into a link's memory."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cloister.link.memory import NUMBER_AT, ROWS_AT, LinkMemory, Mapping, wake


def eventually(holds: Callable[[], bool], seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


@contextmanager
def lying_vault(link: LinkMemory, at: int, value: float) -> Iterator[None]:
    """A process that answers every question at once, with ones and zeros but for one float of its first head."""
    with _beside(lambda: _lie(link, at, value)):
        yield


@contextmanager
def late_answers(link: LinkMemory, after_s: float = 0.0, wake_every_s: float = 0.0) -> Iterator[None]:
    """Such a process, which begins to answer after a while, and until then wakes the service for nothing."""

    def answer() -> None:
        sleeper = Mapping(link.vault_descriptors[1], link.shape.answer_bytes, writable=True)
        end = time.monotonic() + after_s
        while time.monotonic() < end:
            wake(sleeper)
            time.sleep(wake_every_s)
        _lie(link, 0, 0.0)

    with _beside(answer):
        yield


@contextmanager
def _beside(act: Callable[[], None]) -> Iterator[None]:
    pid = os.fork()
    if pid == 0:
        try:
            act()
        finally:
            os._exit(1)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _lie(link: LinkMemory, at: int, value: float) -> None:
    question = Mapping(link.vault_descriptors[0], link.shape.question_bytes, writable=False)
    answer = Mapping(link.vault_descriptors[1], link.shape.answer_bytes, writable=True)
    size = link.shape.dim + 2
    floats = (ctypes.c_float * (link.shape.heads * size)).from_address(answer.address + ROWS_AT)
    for head in range(link.shape.heads):
        floats[head * size + size - 1] = 1.0
    floats[at] = value
    seen = 0
    while True:
        number = question.word(NUMBER_AT).value
        if number != seen:
            seen = number
            answer.word(NUMBER_AT + 4).value, answer.word(NUMBER_AT + 8).value = 0, question.word(NUMBER_AT + 8).value
            answer.word(NUMBER_AT).value = number
            wake(answer)
        time.sleep(0.0002)
