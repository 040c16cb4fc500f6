"""Entry of the gateway process: `python -m cloister.gateway FD`, started by the controller."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys

from cloister.process.hardening import die_with_parent, forbid_core_dumps, hide_tracebacks


def main() -> None:
    """Harden first, then import what is heavy. Ctrl-C is the controller's to hear; it ends us with SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hide_tracebacks()
    forbid_core_dumps()
    die_with_parent()
    from cloister.gateway.process import serve

    # asyncio's own loop: uvloop keeps what it last received in a buffer that lives as long as the loop.
    asyncio.run(serve(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    main()
