"""One template of the processes that compute, for all nodes inside the tests' process: torch is loaded once for them.

`cloister serve` forks them from a template in the same way.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Sequence
from functools import cache

from cloister.messages.controller_template import Fork, Forked, FromTemplate
from cloister.messages.frames import encode_frame
from cloister.process import child
from cloister.process.blocking import BlockingEndpoint
from cloister.process.code import COMPUTING, TEMPLATE
from cloister.process.hardening import WIPE_FREED_MEMORY


class SharedTemplate:
    """The kernel ends it with the tests' process, and what it forked with it."""

    def __init__(self) -> None:
        self._variables = child.environment()
        self._orders, theirs = socket.socketpair()
        self._process = child.run_module(TEMPLATE, theirs, *COMPUTING, **WIPE_FREED_MEMORY)
        self._replies: BlockingEndpoint[Forked] = BlockingEndpoint(self._orders, FromTemplate)
        self._numbers = itertools.count(1)

    def fork(self, entry: str, peer: socket.socket, inherited: Sequence[int]) -> child.StartedChild:
        if child.environment() != self._variables:  # a test has changed what its processes see
            return child.ModuleChild(entry, peer, **WIPE_FREED_MEMORY)
        number, born = next(self._numbers), child.StartedChild()
        with peer:
            order = encode_frame((Fork(number, entry, tuple(inherited)),))
            socket.send_fds(self._orders, [order], [peer.fileno(), *inherited])
        reply = self._replies.next()
        assert isinstance(reply, Forked) and reply.child == number
        [pidfd] = self._replies.take_descriptors(1)
        born.born(pidfd)
        return born


@cache
def _shared() -> SharedTemplate:
    return SharedTemplate()


def fork_computing() -> None:
    """From now on."""
    child.fork_from(dict.fromkeys(COMPUTING, _shared()))


def fork_nothing() -> None:
    child.fork_from({})
