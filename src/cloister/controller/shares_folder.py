"""Where parties of our own keep their shares: a folder for as long as this process lives.

All parties' shares lie there together, and together they are the weights: gigabytes that nobody else may find. A server
that was killed cannot remove its folder, so the next one does: a folder whose owner lives is locked.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

_PREFIX, _OWNER = "serve-", "owner"


class SharesFolder:
    """A new folder within `parent`, which is swept first. On disk: a folder for what is temporary may be in memory."""

    def __init__(self, parent: Path) -> None:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        sweep(parent)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        self._owner = os.open(self.path / _OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._owner, fcntl.LOCK_EX)

    def remove(self) -> None:
        """The folder and all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._owner)


def sweep(parent: Path) -> None:
    """Remove folders whose owners are gone."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # somebody else's, or being made or swept this moment
            owner = os.open(folder / _OWNER, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(owner)
