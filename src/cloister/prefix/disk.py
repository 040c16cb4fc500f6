"""The tier below the pool: blocks on a disk, encrypted with keys that live in this process's memory alone.

The file has no name (adr/0009): it is handed in open. Every tenant's blocks have a key of their own, public ones have
one too; a tenant's end is one key forgotten, and a stopped node leaves noise. A block is bound to the model, to whose
it is and to all tokens up to its end. One that cannot be written or read, or was changed, is a miss.
"""

from __future__ import annotations

import os
import secrets
from abc import ABC, abstractmethod
from dataclasses import dataclass
from hashlib import sha256

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from cloister.prefix.base import Storage
from cloister.prefix.node import Owner

KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16


class Tier(ABC):
    """Keeps copies of blocks that left the pool. It knows no tree."""

    @abstractmethod
    def store(self, owner: Owner, tokens: bytes, block: int) -> int | None:
        """Keep what a block holds of these tokens; the slot it is in, or None: then it is lost."""

    @abstractmethod
    def load(self, slot: int, tokens: bytes, block: int) -> bool:
        """Put what a slot holds into a block, if it is of these tokens, and free the slot. Whether it was."""

    @abstractmethod
    def discard(self, slot: int) -> None:
        """Nobody needs this slot any more."""


@dataclass(frozen=True, slots=True, repr=False)
class _Stored:
    """What opens one slot. Who may see a page changes; whose key it has does not."""

    cipher: AESGCM
    nonce: bytes
    tag: bytes


class DiskTier(Tier):
    """At most `capacity` bytes of the file behind a descriptor. `model` names what the keys and values belong to."""

    def __init__(self, descriptor: int, capacity: int, storage: Storage, model: bytes) -> None:
        self._file = descriptor
        self._storage = storage
        self._model = sha256(model).digest()
        self._size = storage.block_bytes + TAG_BYTES
        self._free = list(range(capacity // self._size - 1, -1, -1))
        self._stored: dict[int, _Stored] = {}
        self._written = 0
        # A sealed process can load no cipher: this one has been used when it is sealed.
        AESGCM(bytes(KEY_BYTES)).encrypt(bytes(NONCE_BYTES), b"", b"")

    def store(self, owner: Owner, tokens: bytes, block: int) -> int | None:
        if not self._free:
            return None
        account = owner.account
        if account.cipher is None:
            account.cipher = AESGCM(secrets.token_bytes(KEY_BYTES))
        self._written += 1  # no nonce is used twice, whatever the key
        stored = _Stored(account.cipher, self._written.to_bytes(NONCE_BYTES, "little"), owner.tag)
        sealed = stored.cipher.encrypt(stored.nonce, self._storage.read(block), self._bound(stored, tokens))
        slot = self._free.pop()
        if not self._write(slot, sealed):
            self._free.append(slot)
            return None
        self._stored[slot] = stored
        return slot

    def load(self, slot: int, tokens: bytes, block: int) -> bool:
        stored = self._stored[slot]
        sealed = self._read(slot)
        self.discard(slot)
        try:
            data = stored.cipher.decrypt(stored.nonce, sealed, self._bound(stored, tokens))
        except InvalidTag:
            return False
        self._storage.write(block, data)
        return True

    def discard(self, slot: int) -> None:
        del self._stored[slot]
        self._free.append(slot)

    def _bound(self, stored: _Stored, tokens: bytes) -> bytes:
        return self._model + stored.tag + sha256(tokens).digest()

    def _write(self, slot: int, data: bytes) -> bool:
        """Whether all of it was written; a disk that is full or broken is no error here."""
        try:
            os.lseek(self._file, slot * self._size, os.SEEK_SET)
            return os.write(self._file, data) == len(data)
        except OSError:
            return False

    def _read(self, slot: int) -> bytes:
        """What is there, be it too little."""
        try:
            os.lseek(self._file, slot * self._size, os.SEEK_SET)
            return os.read(self._file, self._size)
        except OSError:
            return b""
