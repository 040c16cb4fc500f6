"""A node's MPS for the bench: without it processes take turns, and none can wait for another."""

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cloister.controller.mps import DAEMON, Mps
from cloister.errors import SetupError

FOLDER = "CUDA_MPS_PIPE_DIRECTORY"


def pipe_folder() -> str:
    return os.environ.get(FOLDER, "")


@contextmanager
def mps() -> Iterator[bool]:
    daemon = shutil.which(DAEMON)
    if daemon is None:
        yield False
        return
    service = Mps(daemon)
    os.environ[FOLDER] = service.folder
    with asyncio.Runner() as runner:
        try:
            with suppress(SetupError):  # it does not start
                runner.run(service.start(lambda: None))
            yield service.running
        finally:
            runner.run(service.close())
            del os.environ[FOLDER]
