"""A client's memory: each log's last verified checkpoint, log keys of first use. Without it a log could be forked or
rolled back between visits. What cannot be read is not guessed."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from cloister.errors import EvidenceInvalid, SetupError, VerificationFailed
from cloister.files import make_folder, needed, only_one, write_whole
from cloister.transparency.checkpoint import Checkpoint, SignedCheckpoint, read_checkpoint
from cloister.transparency.note import MAX_KEY_CHARACTERS, MAX_NOTE_CHARACTERS, VerifierKey

MAX_MEMORY_BYTES = 16 << 20
_CHECK = "log consistency"


class SeenMoved(VerificationFailed):
    """Another program wrote to the memory since this verification began. Ask the node once more."""

    code = "log_memory_moved"


class _Memory(Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1] = 1
    checkpoints: dict[str, Annotated[str, Meta(max_length=MAX_NOTE_CHARACTERS)]] = {}  # origin → signed checkpoint
    keys: dict[str, Annotated[str, Meta(max_length=MAX_KEY_CHARACTERS)]] = {}  # node's address → key of first use


class SeenLogs:
    def __init__(self, file: Path) -> None:
        self._file = file

    def last(self, origin: str) -> Checkpoint | None:
        signed = self._checkpoint(self._read(), origin)
        return None if signed is None else signed.checkpoint

    def pinned(self, place: str) -> str | None:
        return self._read().keys.get(place)

    def remember(self, signed: SignedCheckpoint, *, after: Checkpoint | None) -> None:
        now = signed.checkpoint
        with self._held():
            memory = self._read()
            before = self._checkpoint(memory, now.origin)
            if (before.checkpoint if before else None) != after:
                hint = "Verify the node again."
                raise SeenMoved("Another program saw more of the log meanwhile.", checks=(_CHECK,), hint=hint)
            if after is not None and (now.size < after.size or (now.size == after.size and now.root != after.root)):
                message = f"The log {now.origin!a} took back what it showed before."
                hint = f"Do not trust it. What it signed before is kept in {self._file}."
                raise VerificationFailed(message, checks=(_CHECK,), hint=hint)
            if signed != before:
                checkpoints = {**memory.checkpoints, now.origin: str(signed)}
                self._write(msgspec.structs.replace(memory, checkpoints=checkpoints))

    def pin(self, place: str, key: VerifierKey) -> None:
        with self._held():
            memory = self._read()
            if memory.keys.get(place, str(key)) != str(key):
                message = f"The log at {place!a} has another key than on first use."
                hint = f"If that is meant to be so, remove the place from {self._file}."
                raise VerificationFailed(message, checks=("log checkpoint",), hint=hint)
            self._write(msgspec.structs.replace(memory, keys={**memory.keys, place: str(key)}))

    @contextmanager
    def _held(self) -> Iterator[None]:
        with needed(f"The memory of logs cannot be kept in {self._file}"):
            make_folder(self._file.parent, mode=0o700)
            with only_one(self._file.with_name(f".{self._file.name}.lock")):
                yield

    def _checkpoint(self, memory: _Memory, origin: str) -> SignedCheckpoint | None:
        text = memory.checkpoints.get(origin)
        if text is None:
            return None
        try:
            signed = read_checkpoint(text)
        except EvidenceInvalid:
            raise self._damaged("does not decode") from None
        if signed.checkpoint.origin != origin:
            raise self._damaged("does not decode")
        return signed

    def _read(self) -> _Memory:
        try:
            descriptor = os.open(self._file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return _Memory()
        except OSError as reason:
            raise self._damaged(f"cannot be read ({reason.strerror})") from None
        # Not opened as a file yet: it may be a folder or a pipe.
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o022 or status.st_uid not in (0, os.geteuid()):
            os.close(descriptor)
            raise self._damaged("is no plain file, or can be written by others")
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(MAX_MEMORY_BYTES + 1)
        if len(data) > MAX_MEMORY_BYTES:
            raise self._damaged("is too large")
        try:
            return msgspec.json.decode(data, type=_Memory)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise self._damaged("does not decode") from None

    def _write(self, memory: _Memory) -> None:
        data = msgspec.json.format(msgspec.json.encode(memory, order="sorted"), indent=1)
        if len(data) > MAX_MEMORY_BYTES:
            raise SetupError(f"{self._file} remembers too many logs.", hint="Remove those you do not use from it.")
        write_whole(self._file, data, mode=0o600)

    def _damaged(self, how: str) -> SetupError:
        message = f"The memory of logs {how}, so a log that took something back would not be noticed."
        hint = f"Restore {self._file}. If you remove it, the logs are met as if for the first time."
        return SetupError(message, hint=hint)
