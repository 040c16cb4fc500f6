"""What every process that holds prompts does first: leave no core dump, and say nothing of its data when it fails."""

from __future__ import annotations

import ctypes
import logging
import resource
import signal
import sys
from types import TracebackType

from cloister.errors import where_raised

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4

log = logging.getLogger("cloister")

# Freed memory is overwritten at once, so that what passed through does not linger: every allocation is malloc's, none
# waits in a thread's cache, and free() fills what it takes back.
WIPE_FREED_MEMORY = {
    "PYTHONMALLOC": "malloc",
    "GLIBC_TUNABLES": "glibc.malloc.perturb=165:glibc.malloc.tcache_count=0",
}


def forbid_core_dumps() -> None:
    """No core file, and no other process of this user may read our memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def die_with_parent() -> None:
    """The kernel ends this process when the one that started it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def hide_tracebacks() -> None:
    """An uncaught error prints its type and place only."""

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            return
        print(f"cloister: ended by {where_raised(error)}", file=sys.stderr)

    sys.excepthook = hook
