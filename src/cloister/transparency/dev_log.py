"""The log of a node without a release, without witnesses. Clients recognise it by its name, `development/…`."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cloister.errors import EvidenceInvalid, SetupError
from cloister.files import make_folder, needed, only_one
from cloister.transparency.log import Log
from cloister.transparency.manifest import measure_running, measurement
from cloister.transparency.note import Algorithm, new_key_file, read_key_file
from cloister.transparency.proof import ReleaseProof, prove_release, publish

ORIGIN_PREFIX = "development/"
_KEY = "log.key"
_LOG = "log"


@dataclass(frozen=True)
class Release:
    manifest: bytes
    log_dir: Path
    log_key: str

    @property
    def measurement(self) -> bytes:
        return measurement(self.manifest)

    def prove(self, since: int = 0) -> ReleaseProof:
        return prove_release(self.log_dir, self.manifest, since)


def development_release(folder: Path, also: Sequence[str] = ()) -> Release:
    """What runs now, in this folder's development log; key and log are made once and kept."""
    manifest = measure_running(also).encoded()
    kept = f"The development log cannot be kept in {folder}"
    try:
        with needed(kept):
            make_folder(folder, mode=0o700)
        with needed(kept), only_one(folder / ".lock"):
            log = _log_in(folder)
            key = read_key_file(folder / _KEY, Algorithm.ED25519)
            if key.verifier != log.key:
                raise EvidenceInvalid("its key is not the log's.")
            publish(log, manifest, key)
    except EvidenceInvalid as wrong:
        raise SetupError(
            f"The development log in {folder} is damaged: {wrong.message}",
            hint="Remove the folder: it is made again, with a new key.",
        ) from None
    return Release(manifest, log.folder, str(log.key))


def _log_in(folder: Path) -> Log:
    """The folder's log. A partial log that a crash left is made again: no client can have seen it."""
    key_file, log_dir = folder / _KEY, folder / _LOG
    if not key_file.exists():
        new_key_file(key_file, ORIGIN_PREFIX + secrets.token_hex(8))
    if not (log_dir / "checkpoint").exists():
        if (log_dir / "tile").exists():
            raise EvidenceInvalid("its checkpoint is gone.")
        return Log.create(log_dir, read_key_file(key_file, Algorithm.ED25519))
    return Log.open(log_dir)
