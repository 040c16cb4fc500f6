"""`python -m cloister.process.template FD ENTRY…` loads entries' code once and forks them, without a user's data. An
entry has `ROLE`, `main(control)`, perhaps `CODE` (what `main` imports) and `load()`."""

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

from cloister.errors import ProtocolError
from cloister.messages.controller_template import Fork, Forked, ToTemplate
from cloister.process import interpreter
from cloister.process.blocking import BlockingEndpoint
from cloister.process.fork_loop import ONE_THREAD, fork_on_order, forked, prepare_to_fork
from cloister.process.hardening import begin_child, begin_forked, check_freed_memory
from cloister.process.sandbox.resources import close_all_but

_ABOVE_ALL_USED = 1 << 9


def main(control: socket.socket, entries: list[str]) -> None:
    check_freed_memory()  # here, once for all children
    os.environ.update(ONE_THREAD)
    gc.disable()  # what imports make stays
    loaded = {entry: load(entry) for entry in entries}
    interpreter.check_loaded()
    prepare_to_fork("template")
    gc.enable()
    orders: BlockingEndpoint[ToTemplate] = BlockingEndpoint(control, ToTemplate)
    us = os.getpid()

    def fork(order: Fork) -> tuple[int, Forked]:
        if order.entry not in loaded:
            raise ProtocolError("A template was ordered to fork an entry that it has not loaded.")
        descriptors = orders.take_descriptors(1 + len(order.numbers))
        pid = forked(descriptors, lambda: _live(loaded[order.entry], descriptors, order.numbers, us))
        return pid, Forked(order.child)

    fork_on_order(orders, fork)


def load(entry: str) -> ModuleType:
    module = import_module(entry)
    if hasattr(module, "__path__"):
        module = import_module(f"{entry}.__main__")
    for name in getattr(module, "CODE", ()):
        import_module(name)
    getattr(module, "load", lambda: None)()
    return module


def _live(module: ModuleType, descriptors: list[int], numbers: tuple[int, ...], parent: int) -> NoReturn:
    """It has its standard descriptors, its control socket, and its order's under the controller's numbers; no other."""
    status = 1
    try:
        moved = [fcntl(each, F_DUPFD_CLOEXEC, _ABOVE_ALL_USED) for each in descriptors]
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
