"""The file of the service's encrypted blocks. It has no name, so the kernel removes it when it is closed (adr/0009)."""

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from cloister.config import cache_folder

log = logging.getLogger(__name__)


@contextmanager
def cache_file(size: int) -> Iterator[int | None]:
    """Open until the service has it; None where `size` is 0 or no file can be made: the service works without."""
    if not size:
        yield None
        return
    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
    except OSError as reason:
        log.warning(
            "No file for --cache-disk-bytes (%s): blocks that the KV cache has no room for are computed again. "
            "Give the cache folder room, or leave the option out.",
            os.strerror(reason.errno or 0),
        )
        yield None
        return
    with file:
        yield file.fileno()
