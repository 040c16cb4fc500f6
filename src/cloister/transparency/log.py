"""A log in a plain folder, without secrets: `checkpoint` (written last), `vkey`, `tile/…` (C2SP), `manifest/<hex>`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from cloister.errors import EvidenceInvalid, SetupError
from cloister.files import make_folder, needed, only_one, write_whole
from cloister.transparency import note as notes
from cloister.transparency.checkpoint import Checkpoint, SignedCheckpoint, read_checkpoint
from cloister.transparency.merkle import Tiles, consistency_proof, inclusion_proof
from cloister.transparency.note import Note, Signature, SigningKey, VerifierKey

_CHECKPOINT = "checkpoint"
_KEY = "vkey"
_LOCK = ".lock"


class Log:
    """The log as of its checkpoint when this object was made or last appended to; others may have appended since."""

    def __init__(self, folder: Path, key: VerifierKey, signed: SignedCheckpoint) -> None:
        self.folder = folder
        self.key = key
        self.signed = signed
        self.tiles = Tiles(folder, signed.checkpoint.size)

    @classmethod
    def create(cls, folder: Path, key: SigningKey) -> Self:
        """An empty log; the key's name is its origin."""
        with needed(f"No log can be made in {folder}"):
            make_folder(folder)
            with only_one(folder / _LOCK):
                if any((folder / name).exists() for name in (_CHECKPOINT, "tile")):
                    raise SetupError(f"There is a log in {folder} already.", hint="Name a new folder.")
                write_whole(folder / _KEY, f"{key.verifier}\n".encode())
                _publish(folder, key, Tiles(folder, 0))
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The log in this folder. Checking its checkpoint against the key beside it shows damage, not deceit."""
        try:
            key = VerifierKey.parse(_read(folder, _KEY, notes.MAX_KEY_CHARACTERS).removesuffix("\n"))
        except EvidenceInvalid as wrong:
            raise EvidenceInvalid(f"{folder / _KEY} holds no log's key: {wrong.message}", hint=wrong.hint) from None
        signed = read_checkpoint(_read(folder, _CHECKPOINT, notes.MAX_NOTE_CHARACTERS))
        if not signed.signed_by(key):
            raise EvidenceInvalid(f"The checkpoint in {folder} is not signed by the log's key.")
        return cls(folder, key, signed)

    @property
    def checkpoint(self) -> Checkpoint:
        return self.signed.checkpoint

    @property
    def origin(self) -> str:
        return self.checkpoint.origin

    def append(self, entry: bytes, key: SigningKey) -> int:
        """Add an entry; its index. Once this returns, the entry survives a crash."""
        return self.append_all((entry,), key)

    def append_all(self, entries: Sequence[bytes], key: SigningKey) -> int:
        if key.verifier != self.key:
            raise SetupError("The key is not this log's.", hint=f"Give the key of {self.key.name}.")
        with needed(f"The log in {self.folder} cannot be written"), only_one(self.folder / _LOCK):
            now = Log.open(self.folder)
            # A checkpoint covers all earlier entries: those that are no longer on the disk are not signed again.
            if now.tiles.root() != now.checkpoint.root:
                raise EvidenceInvalid("The log's tiles do not add up to its checkpoint.", hint="Restore the log.")
            _publish(self.folder, key, now.tiles.extended(entries))
            self._become(Log.open(self.folder))
        return now.checkpoint.size

    def attach(self, cosignature: Signature) -> None:
        with needed(f"The log in {self.folder} cannot be written"), only_one(self.folder / _LOCK):
            now = Log.open(self.folder)
            signer = (cosignature.name, cosignature.key_id)
            if signer == (self.key.name, self.key.key_id):
                raise EvidenceInvalid("A log does not witness itself.")
            kept = [line for line in now.signed.note.signatures if (line.name, line.key_id) != signer]
            if len(kept) >= notes.MAX_SIGNATURES:
                raise EvidenceInvalid(f"The checkpoint has {notes.MAX_SIGNATURES} signatures already.")
            note = Note(now.signed.note.text, (*kept, cosignature))
            write_whole(self.folder / _CHECKPOINT, str(note).encode())
            self._become(Log.open(self.folder))

    def inclusion(self, index: int) -> tuple[bytes, ...]:
        if not 0 <= index < self.checkpoint.size:
            raise EvidenceInvalid(f"The log has no entry {index}: it has {self.checkpoint.size}.")
        return inclusion_proof(self.tiles.subtree, index, self.checkpoint.size)

    def consistency(self, since: int) -> tuple[bytes, ...]:
        if not 0 <= since <= self.checkpoint.size:
            raise EvidenceInvalid(f"The log never had {since} entries: it has {self.checkpoint.size}.")
        return consistency_proof(self.tiles.subtree, since, self.checkpoint.size)

    def _become(self, other: "Log") -> None:
        self.signed, self.tiles = other.signed, other.tiles


def _publish(folder: Path, key: SigningKey, tiles: Tiles) -> None:
    text = Checkpoint(key.name, tiles.size, tiles.root()).text
    write_whole(folder / _CHECKPOINT, str(Note(text, (key.sign(text),))).encode())


def _read(folder: Path, name: str, limit: int) -> str:
    try:
        with (folder / name).open("rb") as file:
            data = file.read(4 * limit + 1)
    except OSError as reason:
        message = f"There is no log in {folder}: {name} cannot be read ({reason.strerror})."
        raise SetupError(message, hint="`cloister log create` makes one.") from None
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise EvidenceInvalid(f"The log's {name} is not text.") from None
