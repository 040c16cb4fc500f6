"""A template: `python -m cloister.process.template FD ENTRY…` loads the code of these entries once, then forks them.

What runs later, and what runs again after it ended, runs the code that was there when the node started: nothing is read
from the disk again, whatever may have happened to it since. It never sees anything of a user's.

An entry is a module with `ROLE`, `main(control)` and perhaps `CODE`: the modules `main` imports once it is hardened;
`load()`, if there is one, fetches code that is not Python's.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from fcntl import F_DUPFD_CLOEXEC, fcntl
from importlib import import_module
from types import ModuleType
from typing import NoReturn, cast

from cloister.errors import ProtocolError, SetupError
from cloister.messages.controller_template import Fork, Forked, ToTemplate
from cloister.messages.lifecycle import Ping, Pong
from cloister.process import interpreter
from cloister.process.blocking import BlockingEndpoint
from cloister.process.hardening import begin_child, begin_forked, check_freed_memory, give_back_freed_memory
from cloister.process.sandbox.resources import close_all_but

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Libraries that would start threads are told not to before they are imported: threads do not survive a fork."""

_OUT_OF_THE_WAY = 1 << 9


def main(control: socket.socket, entries: list[str]) -> None:
    """Load, then fork on order until who started us hangs up; all that was forked ends with this process."""
    check_freed_memory()  # of all that is forked from here
    os.environ.update(ONE_THREAD)
    loaded = {entry: load(entry) for entry in entries}
    interpreter.check_loaded()
    gc.collect()
    give_back_freed_memory()
    gc.freeze()  # so that no collection in a child writes to, and thereby copies, what it shares with all others
    if len(os.listdir("/proc/self/task")) != 1:
        raise SetupError("A library started a thread in a template, which could not fork safely.")
    Template(BlockingEndpoint(control, ToTemplate), loaded).run()


def load(entry: str) -> ModuleType:
    """The entry's module, all its code imported."""
    module = import_module(entry)
    if hasattr(module, "__path__"):
        module = import_module(f"{entry}.__main__")
    for name in getattr(module, "CODE", ()):
        import_module(name)
    getattr(module, "load", lambda: None)()
    return module


class Template:
    """Forks on order and buries the dead."""

    def __init__(self, orders: BlockingEndpoint[ToTemplate], loaded: dict[str, ModuleType]) -> None:
        self._orders = orders
        self._loaded = loaded
        self._living: dict[int, int] = {}

    def run(self) -> None:
        while (order := self._orders.next_or_readable(set(self._living))) is not None:
            if isinstance(order, set):
                self._reap(order)
            elif isinstance(order, Ping):
                self._orders.send(Pong())
            else:
                self._fork(order)

    def _fork(self, order: Fork) -> None:
        if order.entry not in self._loaded:
            raise ProtocolError("A template was told to fork what it has not loaded.")
        descriptors = self._orders.take_descriptors(1 + len(order.numbers))
        us = os.getpid()
        pid = os.fork()
        if not pid:
            _live(self._loaded[order.entry], descriptors, order.numbers, us)
        for descriptor in descriptors:
            os.close(descriptor)
        pidfd = os.pidfd_open(pid)
        self._living[pidfd] = pid
        self._orders.send(Forked(order.child), pidfd)

    def _reap(self, ended: set[int]) -> None:
        for pidfd in ended:
            os.waitpid(self._living.pop(pidfd), 0)
            os.close(pidfd)


def _live(module: ModuleType, descriptors: list[int], numbers: tuple[int, ...], parent: int) -> NoReturn:
    """The whole life of a child. It has its standard descriptors, its control socket and what came for it, under the
    numbers its sender knows it by; nothing else of the template's."""
    status = 1
    try:
        moved = [fcntl(each, F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY) for each in descriptors]
        for each, number in zip(moved[1:], numbers, strict=True):
            os.dup2(each, number, inheritable=False)
        control = begin_forked(module.ROLE, os.dup(moved[0]), parent)
        close_all_but({0, 1, 2, control.fileno(), *numbers})
        cast(Callable[[socket.socket], None], module.main)(control)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:  # nothing may return into the template's code
        with suppress(BaseException):
            sys.excepthook(type(error), error, error.__traceback__)
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main(begin_child("template"), sys.argv[2:])
