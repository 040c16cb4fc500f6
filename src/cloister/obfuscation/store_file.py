"""Substitutes in a file of their user's own. Secrets are there as HMAC-SHA256 under the file's own key: that hides them
from a glance and a search, not from guesses with the file at hand. Secrets of earlier processes are found in marks
alone."""

import hmac
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from cloister.errors import ObfuscationRefused, SetupError
from cloister.files import make_folder, needed, only_one, read_private, write_whole
from cloister.obfuscation.parts import is_telling, parts_of, words_in
from cloister.obfuscation.store import MAX_KEPT, Kept
from cloister.obfuscation.tags import TaggedText

MAX_FILE_BYTES = 16 << 20
MAX_LOOKED_WORDS = 16  # of a known secret inside a longer mark
_KEY_BYTES = 32
_HASH_CHARACTERS = 64
_UNSEEN = "\ua7f7"  # begins a word that stands for one of which we have a hash alone; a letter that texts do not have
_Hash = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
_Capitals = Literal["upper", "lower", "mixed"]


class _Entry(Kept, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`words` of the secret: titles and small words as they are, which substitutes have too; of all others hashes."""

    capitals: _Capitals
    words: Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(max_length=512)]


class _Contents(Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    key: Annotated[bytes, Meta(min_length=_KEY_BYTES, max_length=_KEY_BYTES)]
    entries: Annotated[dict[_Hash, _Entry], Meta(max_length=MAX_KEPT)] = {}

    def __repr__(self) -> str:
        return f"_Contents({len(self.entries)})"


class SubstitutesFile:
    """Its owner's alone (0600), and replaced whole under a lock. One that cannot be read is an error: a new
    one would give known secrets other substitutes."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        with self._locked():
            if not self.path.exists():
                self._write(_Contents(1, secrets.token_bytes(_KEY_BYTES)))
        self._state: tuple[int, ...] | None = None
        self._entries: dict[_Hash, _Entry] = {}
        self._owners: dict[_Hash, tuple[_Hash, int]] = {}
        self.key = self._load().key

    @property
    def entries(self) -> Mapping[_Hash, _Entry]:
        """As the file is now; as it was, where it was removed while we run."""
        if (state := self._stat()) not in (None, self._state):
            found = self._load()
            if found.key != self.key:
                raise SetupError(
                    f"{self.path} was replaced by a new file while in use.", hint="Start this program again."
                )
            self._state, self._entries, self._owners = state, found.entries, {}
            for name, entry in found.entries.items():
                for at, word in enumerate(entry.words):
                    self._owners.setdefault(word, (name, at))
        return self._entries

    def owner(self, word: _Hash) -> tuple[_Hash, int] | None:
        """The secret that has this word, and the word's number in it. The first that had it, where several have."""
        return self._owners.get(word) if self.entries else None

    def add(self, new: Mapping[_Hash, _Entry]) -> None:
        with self._locked():
            merged = dict(self.entries)
            for name, entry in new.items():
                merged.setdefault(name, entry)
            self.refuse_over(len(merged))
            self._write(_Contents(1, self.key, merged))

    def refuse_over(self, count: int, size: int = 0) -> None:
        if count > MAX_KEPT or size > MAX_FILE_BYTES:
            message = f"{self.path} would have more than {MAX_KEPT} secrets or {MAX_FILE_BYTES >> 20} MiB."
            hint = "Name a new file for another provider. One that saw the old sets compares them with new ones."
            raise ObfuscationRefused(message, hint=hint)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with needed(f"Substitutes cannot be kept in {self.path}", 'Name another file, or "none".'):
            make_folder(self.path.parent, mode=0o700)
            with only_one(self.path.with_name(f".{self.path.name}.lock")):
                yield

    def _stat(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_mode

    def _load(self) -> _Contents:
        data = read_private(self.path, MAX_FILE_BYTES + 1, "file of substitutes", 'Name another, or "none".')
        try:
            if len(data) > MAX_FILE_BYTES:
                raise ValueError
            return msgspec.json.decode(data, type=_Contents)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            message = f"The file of substitutes {self.path} is damaged, too large or of another version."
            hint = "Restore it from a copy. A new file draws new sets, which a provider compares with the old ones."
            raise SetupError(message, hint=hint) from None

    def _write(self, contents: _Contents) -> None:
        data = msgspec.json.encode(contents)
        self.refuse_over(0, len(data))
        write_whole(self.path, data, mode=0o600)


class FileStore:
    """One user's part of a file; users' hashes differ."""

    def __init__(self, file: SubstitutesFile, user: bytes = b"") -> None:
        self._file, self._key = file, hmac.digest(file.key, b"user\0" + user, "sha256")
        self._spelt: dict[str, str] = {}  # by hash, secrets of texts that this process read
        self._named: dict[str, str] = {}  # by spelling in small letters: the hash
        self._seen: dict[str, dict[int, str]] = {}  # by hash, some words of a secret that was not said whole

    def recall(self, texts: Iterable[TaggedText]) -> list[str]:
        with _refusing():
            entries = self._file.entries
        for said in {text.secret(span) for text in texts for span in text.spans}:
            for piece in _pieces(said):
                if (entry := entries.get(name := self._hash(b"secret", piece))) is not None:
                    self._say(name, _spelt(piece, entry.capitals))
            for word in filter(is_telling, (found[0] for found in words_in(said))):
                name, at = self._file.owner(self._hash(b"word", word)) or ("", 0)
                if name and (name not in self._spelt or name in self._seen):
                    self._seen.setdefault(name, {})[at] = _spelt(word, entries[name].capitals)
                    self._say(name, _in_part(name, entries[name], self._seen[name]), whole=False)
        return self.known()

    def known(self) -> list[str]:
        return list(self._spelt.values())

    def find(self, secret: str) -> Kept | None:
        with _refusing():
            return self._file.entries.get(self._name(secret))

    def spelling(self, secret: str) -> str:
        return self._spelt.get(self._name(secret), secret)

    def refuse_more(self, count: int) -> None:
        with _refusing():
            self._file.refuse_over(len(self._file.entries) + count)

    def keep(self, found: Mapping[str, Kept]) -> None:
        new = {self._hash(b"secret", secret): self._entry(secret, kept) for secret, kept in found.items()}
        with _refusing():
            self._file.add(new)
            for name, secret in zip(new, found, strict=True):
                self._say(name, _spelt(secret, self._file.entries[name].capitals))

    def of(self, user: bytes) -> "FileStore":
        return FileStore(self._file, user)

    def _name(self, secret: str) -> str:
        return self._named.get(secret.casefold()) or self._hash(b"secret", secret)

    def _hash(self, use: bytes, text: str) -> str:
        return hmac.digest(self._key, use + b"\0" + text.casefold().encode("utf-8", "replace"), "sha256").hex()

    def _say(self, name: str, spelt: str, *, whole: bool = True) -> None:
        if whole and name in self._spelt and name not in self._seen:
            return
        self._named.pop(self._spelt.get(name, "").casefold(), None)
        self._spelt[name], self._named[spelt.casefold()] = spelt, name
        if whole:
            self._seen.pop(name, None)

    def _entry(self, secret: str, kept: Kept) -> _Entry:
        parts = {part.casefold() for part in parts_of(secret)}
        said = [found[0] for found in words_in(secret)]
        words = (self._hash(b"word", word) if word.casefold() in parts else word for word in said[:512])
        capitals: _Capitals = "upper" if secret.isupper() else "lower" if secret.islower() else "mixed"
        return _Entry(values=kept.values, method=kept.method, capitals=capitals, words=tuple(words))


@contextmanager
def _refusing() -> Iterator[None]:
    """What is wrong with the file while requests come is an answer to the request."""
    try:
        yield
    except SetupError as wrong:
        raise ObfuscationRefused(wrong.message, hint=wrong.hint) from None


def _pieces(said: str) -> Iterator[str]:
    """The mark itself, and the text between any two of its words."""
    yield said
    words = words_in(said)
    for first, begin in enumerate(words):
        for end in words[first : first + MAX_LOOKED_WORDS]:
            yield said[begin.start() : end.end()]


def _spelt(said: str, capitals: _Capitals) -> str:
    if capitals != "mixed":
        return said.upper() if capitals == "upper" else said.lower()
    return said.title() if said.isupper() or said.islower() else said


def _in_part(name: str, entry: _Entry, seen: Mapping[int, str]) -> str:
    """A secret of which only some words were said: words that no text has stand for the others."""
    plain = (word if len(word) < _HASH_CHARACTERS else "" for word in entry.words)
    return " ".join(seen.get(at) or word or f"{_UNSEEN}{name[:16]}{at}" for at, word in enumerate(plain))
