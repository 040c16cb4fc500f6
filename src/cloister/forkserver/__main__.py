"""Entry of the fork server process: `python -m cloister.forkserver FD`, started by the controller."""

import os
import socket
from contextlib import suppress

from cloister.errors import SetupError
from cloister.models import torch_metas
from cloister.process.fork_loop import ONE_THREAD
from cloister.process.hardening import begin_child

torch_metas.put_off()
ROLE = "forkserver"
CODE = ("cloister.forkserver.process",)


def load() -> None:
    """The kernels are code, too. If they cannot be built, the first process that needs them reports why."""
    from cloister.compute.choose import fetch_kernels

    with suppress(SetupError, OSError):
        fetch_kernels()


def main(control: socket.socket) -> None:
    os.environ.update(ONE_THREAD)
    from cloister.forkserver.process import serve

    serve(control)


if __name__ == "__main__":
    main(begin_child(ROLE))
