"""Forks children on order and reaps them: the loop of templates and of the fork server."""

import gc
import os
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from cloister.errors import SetupError
from cloister.messages.lifecycle import Ping, Pong
from cloister.process.blocking import BlockingEndpoint
from cloister.process.hardening import give_back_freed_memory

ONE_THREAD = {  # libraries start no threads when they are imported: threads do not survive a fork
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def prepare_to_fork(name: str) -> None:
    gc.collect()
    give_back_freed_memory()  # every child would map it, and give it back page by page when it ends
    gc.freeze()  # a collection in a child would write to shared memory, and thereby copy it
    if len(os.listdir("/proc/self/task")) != 1:
        raise SetupError(f"A library started a thread in the {name}, which could not fork safely.")


def fork_on_order(orders: BlockingEndpoint[Any], fork: Callable[[Any], tuple[int, msgspec.Struct]]) -> None:
    """Until the controller hangs up. `fork` returns a child's pid and the message that goes back with its pidfd."""
    living: dict[int, int] = {}
    while (order := orders.next_or_readable(set(living))) is not None:
        if isinstance(order, set):
            for pidfd in order:
                os.waitpid(living.pop(pidfd), 0)
                os.close(pidfd)
        elif isinstance(order, Ping):
            orders.send(Pong())
        else:
            pid, message = fork(order)
            pidfd = os.pidfd_open(pid)
            living[pidfd] = pid
            orders.send(message, pidfd)


def forked(descriptors: list[int], live: Callable[[], NoReturn]) -> int:
    if not (pid := os.fork()):
        live()
    for descriptor in descriptors:
        os.close(descriptor)
    return pid
