"""Small releases, logs and witnesses for the tests of the log."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from cloister.transparency.checkpoint import ReleaseTrust
from cloister.transparency.log import Log
from cloister.transparency.manifest import FORMAT, Manifest
from cloister.transparency.merkle import Subtree, fold
from cloister.transparency.note import Algorithm, SigningKey
from cloister.transparency.proof import publish

ORIGIN = "log.example/releases"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def manifest(number: int, *, branch: str = "") -> bytes:
    """The manifest of a tiny release; another `branch` is another release of the same version."""
    digest = hashlib.sha256(f"{number}{branch}".encode()).hexdigest()
    return Manifest(FORMAT, f"0.{number}", {"src/cloister/__init__.py": digest}, None, None).encoded()


def release_log(folder: Path, key: SigningKey, releases: Sequence[bytes]) -> Log:
    """A new log with these releases."""
    log = Log.create(folder, key)
    for each in releases:
        publish(log, each, key)
    return log


def forked(log: Log, folder: Path, key: SigningKey, releases: Sequence[bytes]) -> Log:
    """A copy of the log that goes another way."""
    shutil.copytree(log.folder, folder)
    fork = Log.open(folder)
    for each in releases:
        publish(fork, each, key)
    return fork


def witness_key(name: str) -> SigningKey:
    return SigningKey.generate(name, Algorithm.COSIGNATURE)


def trust(log: Log, *witnesses: SigningKey, quorum: int | None = None) -> ReleaseTrust:
    return ReleaseTrust((str(log.key),), tuple(str(key.verifier) for key in witnesses), quorum)


def flips(data: bytes) -> list[bytes]:
    """The data with each of its bits flipped, one at a time."""
    return [data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :] for at in range(len(data)) for bit in range(8)]


def in_memory(leaves: Sequence[bytes]) -> Subtree:
    """The tree over these leaf hashes."""
    return lambda level, index: fold(leaves[index << level : (index + 1) << level])
