"""Entry of the parlour process: `python -m cloister.parlour FD`, started by the controller."""

from __future__ import annotations

import os
import signal
import socket
import sys

from cloister.process.hardening import die_with_parent, forbid_core_dumps, hide_tracebacks


def main() -> None:
    """Harden first, then import what is heavy."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hide_tracebacks()
    forbid_core_dumps()
    die_with_parent()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # it must have one thread only when it leaves the host
    from cloister.parlour.process import serve

    serve(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
