"""A party's shares, one file each (0600), so that an engine needs no dealing. All parties' stores are the weights."""

import hashlib
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from cloister.errors import ProtocolError, Unauthorized
from cloister.process import interpreter
from cloister_mpc.config import share_bytes
from cloister_mpc.connection import Connection
from cloister_mpc.messages import AskWeights, Complete, HeldWeights, Serving, Stored, Weight, WeightPiece

log = logging.getLogger(__name__)

_LIST = "shelf.json"
PROGRAMS = "programs"  # the folder's name beside a party's shares, where the settings name no other


class _Listed(msgspec.Struct):
    weights: list[Weight]
    complete: Complete | None


class WeightStore:
    """`complete` is the model it serves, once all its weights are here."""

    def __init__(self, folder: Path | None, limit_bytes: int) -> None:
        self._temporary = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="cloister-weights-")) if folder is None else folder
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._limit = limit_bytes
        self._weights: dict[str, Weight] = {}
        self.complete: Complete | None = None
        self._coming: tuple[Weight, BinaryIO] | None = None
        self._left = 0
        self._read_list()

    @property
    def weights(self) -> tuple[Weight, ...]:
        return tuple(self._weights.values())

    @property
    def digest(self) -> bytes | None:
        """Of the model and its dealings here: parties with different ones do not fit together. None until complete."""
        if self.complete is None:
            return None
        used = [(weight.head.name, weight.dealing) for weight in self.used()]
        return hashlib.sha256(msgspec.json.encode((self.complete, used))).digest()

    def used(self) -> tuple[Weight, ...]:
        return tuple(self._weights[name] for name in self.complete.names) if self.complete else ()

    def announce(self, weight: Weight) -> None:
        """Its bytes follow. What was there under its name is gone."""
        self.abandon()
        expected = share_bytes(weight.head)
        there = sum(share_bytes(each.head) for each in self._weights.values())
        if there + expected > self._limit:
            raise ProtocolError("These weights exceed the party's limit.", hint="Raise weights_mib in the settings.")
        self.complete = None
        old = self._weights.pop(weight.head.name, None)
        self._write_list()
        if old is not None:
            file_of(self.folder, old).unlink(missing_ok=True)
        descriptor = os.open(file_of(self.folder, weight), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._coming, self._left = (weight, os.fdopen(descriptor, "wb")), expected

    def add(self, data: bytes) -> str | None:
        """More bytes; the weight's name when it is whole."""
        if self._coming is None:
            raise ProtocolError("Bytes of a weight that was not announced.")
        weight, file = self._coming
        self._left -= len(data)
        if self._left < 0:
            self.abandon()
            raise ProtocolError("A weight has more bytes than were announced.")
        file.write(data)
        if self._left:
            return None
        file.close()
        self._coming = None
        self._weights[weight.head.name] = weight
        self._write_list()
        return weight.head.name

    def abandon(self) -> None:
        if self._coming is not None:
            weight, file = self._coming
            file.close()
            file_of(self.folder, weight).unlink(missing_ok=True)
            self._coming = None

    def finish(self, complete: Complete) -> None:
        """These are all the model's weights; others are removed."""
        missing = [name for name in complete.names if name not in self._weights]
        if missing or not complete.names:
            raise ProtocolError(f"{len(missing)} of the model's weights are not here.")
        self.complete = complete
        for name in self._weights.keys() - set(complete.names):
            file_of(self.folder, self._weights.pop(name)).unlink(missing_ok=True)
        self._write_list()

    def close(self) -> None:
        self.abandon()
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _read_list(self) -> None:
        with suppress(OSError, msgspec.MsgspecError):
            listed = msgspec.json.decode((self.folder / _LIST).read_bytes(), type=_Listed)
            for weight in listed.weights:
                expected = share_bytes(weight.head)
                if file_of(self.folder, weight).stat().st_size == expected:
                    self._weights[weight.head.name] = weight
            if listed.complete and all(name in self._weights for name in listed.complete.names):
                self.complete = listed.complete

    def _write_list(self) -> None:
        temporary = self.folder / f"{_LIST}.new"
        temporary.write_bytes(msgspec.json.encode(_Listed(list(self._weights.values()), self.complete)))
        temporary.replace(self.folder / _LIST)


def file_of(folder: Path, weight: Weight) -> Path:
    """Named by its dealing: no name that comes from elsewhere becomes a path."""
    return folder / f"{weight.dealing.hex()}.share"


class ProviderConnection:
    """One provider at a time. `changed` is called when the store is complete and not what engines have loaded."""

    def __init__(self, store: WeightStore, changed: Callable[[], None]) -> None:
        self._store = store
        self._changed = changed
        self._provider: Connection | None = None
        self._waits: Connection | None = None
        self._served: bytes | None = None

    def begin(self) -> None:
        self._served = self._store.digest
        if self._waits is not None and self._store.complete is not None:
            self._waits.post(Serving(self._store.complete.model))
            self._waits = None

    def end(self) -> None:
        self._served = None

    def gone(self, connection: Connection) -> None:
        if connection is self._provider:
            self._provider = self._waits = None
            self._store.abandon()

    def receive(self, connection: Connection, message: AskWeights | Weight | WeightPiece | Complete) -> None:
        if self._provider not in (None, connection):
            raise Unauthorized("Another provider is dealing weights.")
        self._provider = connection
        match message:
            case AskWeights():
                connection.post(HeldWeights(self._store.weights))
            case Weight():
                self._store.announce(message)
            case WeightPiece():
                if (stored := self._store.add(message.data)) is not None:
                    connection.post(Stored(stored))
            case Complete():
                self._store.finish(message)
                self._waits = connection
                if self._served == self._store.digest:
                    self.begin()
                else:
                    self._changed()


def program_folder(wanted: Path) -> Path | None:
    """Made if need be. None where others could write there, and for a release, which runs its own code alone."""
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
