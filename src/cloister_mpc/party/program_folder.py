"""Where a party keeps the programs it compiled (model.program_store): in a private folder, or not at all."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

from cloister.process import interpreter

log = logging.getLogger(__name__)

PROGRAMS = "programs"  # the folder's name beside a party's shares, where the settings name no other


def program_folder(wanted: Path) -> Path | None:
    """Made if need be. None where others could write there, or where we are held to a release: it runs its own code
    alone."""
    if interpreter.running() is not None:
        return None
    try:
        wanted.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = wanted.lstat()
    except OSError as reason:
        log.warning("Compiled programs are not kept: %s.", reason.strerror)
        return None
    if not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077 or status.st_uid != os.geteuid():
        log.warning("Compiled programs are not kept: their folder is not this party's alone.")
        return None
    return wanted
