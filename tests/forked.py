"""A template, as a node has one, for all tests of a process: what it forks need not import torch once more."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache

from cloister.messages.controller_template import Fork, Forked, FromTemplate
from cloister.process import child
from cloister.process.code import COMPUTING, TEMPLATE
from cloister.process.hardening import WIPE_FREED_MEMORY
from tests.forkserver.line import Line


class KeptTemplate:
    """Belongs to no event loop: `fork` waits until the child exists."""

    def __init__(self, *entries: str) -> None:
        ours, theirs = socket.socketpair()
        self._process = child.run_module(TEMPLATE, theirs, *entries, **WIPE_FREED_MEMORY)
        self._line = Line(ours, FromTemplate)
        self._numbers = itertools.count(1)

    def fork(self, entry: str, peer: socket.socket, inherited: Sequence[int]) -> child.StartedChild:
        number, born = next(self._numbers), child.StartedChild()
        with peer:
            self._line.send(Fork(number, entry, tuple(inherited)), descriptors=(peer.fileno(), *inherited))
        assert self._line.handle() == Forked(number)
        born.born(self._line.descriptors.popleft())
        return born


_kept = cache(KeptTemplate)


def fork_from_template(*entries: str) -> None:
    """From now on, until `start_afresh`. What such a child runs and inherits is as it was at the first call."""
    child.fork_from(dict.fromkeys(entries or COMPUTING, _kept(*(entries or COMPUTING))))


def start_afresh() -> None:
    child.fork_from({})


@contextmanager
def forking(*entries: str) -> Iterator[None]:
    fork_from_template(*entries)
    try:
        yield
    finally:
        start_afresh()
