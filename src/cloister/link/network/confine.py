"""The seal of a bridge, which reads from the network, in its parent's namespaces: no file, connection or process."""

import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Collection
from typing import NoReturn

from cloister.errors import CloisterError, SandboxIncomplete, where_raised
from cloister.link.memory import links
from cloister.process.hardening import die_with_parent
from cloister.process.sandbox import seccomp
from cloister.process.sandbox.credentials import give_up_powers
from cloister.process.sandbox.resources import close_all_but

log = logging.getLogger(__name__)


def run_bridge(control: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    try:
        serve(control)
    except Exception as reason:
        say(reason)
        sys.exit(1)


def confine(loops: Collection[Callable[[], None]], keep: Collection[int], *, allow_degraded: bool) -> NoReturn:
    """Give up what is no longer needed, then run the loops, one thread each. The process ends with the first."""
    give_up_powers(())
    die_with_parent()  # giving up powers makes the kernel forget it
    gate = threading.Barrier(len(loops))
    first, *others = loops
    for loop in others:
        threading.Thread(target=_run, args=(loop, gate), daemon=True).start()
    close_all_but({0, 1, 2, *keep})
    held = seccomp.install(False, links().upper_word) and seccomp.installed()
    if not held and not allow_degraded:
        say(SandboxIncomplete("A bridge of the network link cannot seal itself (seccomp)."))
        os._exit(1)
    _run(first, gate)
    raise AssertionError("a loop's end is the process's end")


def say(reason: Exception) -> None:
    """One line for the operator; none for a ConnectionError: the owner of the local process reports its end."""
    if isinstance(reason, ConnectionError):
        return
    log.error("A bridge ended. %s", reason if isinstance(reason, CloisterError) else where_raised(reason))


def _run(loop: Callable[[], None], gate: threading.Barrier) -> None:
    status = 1
    try:
        gate.wait()  # nothing moves before the seal
        loop()
        status = 0
    except Exception as reason:
        say(reason)
    finally:
        os._exit(status)
