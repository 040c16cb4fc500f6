"""Which release this node runs, and where the log is that has it: one that was published, or a development log."""

from __future__ import annotations

from pathlib import Path

from cloister.config import cache_folder
from cloister.errors import CloisterError, SetupError
from cloister.transparency.dev_log import Release, development_release
from cloister.transparency.log import Log
from cloister.transparency.manifest import differences, measure_running, read_manifest
from cloister.transparency.proof import entry_of, published_manifest

DEVELOPMENT = "development-log"


def find_release(log: Path | None) -> Release:
    """The release in this log whose files are the ones that run; without a log, one of our own making."""
    return development_release(cache_folder() / DEVELOPMENT) if log is None else _published(log)


def _published(folder: Path) -> Release:
    try:
        log = Log.open(folder)
        names = sorted(path.name for path in (folder / "manifest").iterdir())
        manifests = [published_manifest(log, bytes.fromhex(name)) for name in names]
        running = measure_running()
        found = {
            place: manifest
            for manifest in manifests
            if not differences(read_manifest(manifest), running) and (place := log.find(entry_of(manifest))) is not None
        }
    except (OSError, ValueError) as wrong:
        raise SetupError(f"The log in {folder} cannot be read ({type(wrong).__name__}).") from None
    except CloisterError as wrong:
        raise SetupError(f"The log in {folder} is of no use: {wrong.message}", hint=wrong.hint) from None
    if not found:
        raise SetupError(
            f"No release in {folder} is what runs here.",
            hint="Publish this one (`cloister release build`, `cloister log append`), or install one that is there.",
        )
    return Release(found[max(found)], folder, str(log.key))
