"""Entry of the nursery process: `python -m cloister.nursery FD`, started by the controller."""

from __future__ import annotations

import os
import signal
import socket
import sys

from cloister.process.hardening import die_with_parent, forbid_core_dumps, hide_tracebacks

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def main() -> None:
    """Harden first, then import what is heavy; libraries that would start threads are told not to before that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hide_tracebacks()
    forbid_core_dumps()
    die_with_parent()
    os.environ.update(ONE_THREAD)
    from cloister.nursery.process import serve

    serve(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
