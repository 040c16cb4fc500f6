"""The tier on a disk: blocks that are encrypted with keys which live in this process's memory alone.

The file has no name (adr/0009): it is handed in open. Every tenant has a key, so a tenant's end is one key forgotten; a
public block has its own, forgotten with the block: the last tenant with a right to it may leave before others do. A
stopped node leaves noise. A block is bound to the model, to whose it is and to all tokens up to its end. One that
cannot be written or read, or was changed, is a miss; so is one that the thread fails on for any other reason: it must
not end, or nothing would come or go any more.

One thread encrypts, writes, reads and decrypts, in the order in which it was asked, so a place may be used again at
once. Blocks on their way are bounded; they are plain until they are encrypted, and again until they are taken.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections import deque
from hashlib import sha256
from time import monotonic

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from cloister.errors import where_raised
from cloister.prefix.owners import Owner
from cloister.prefix.tier import Shelf, State, Tier

log = logging.getLogger(__name__)

KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
IN_FLIGHT_BYTES = 64 << 20
"""What blocks on their way take at most, beside one that the thread has in its hands."""
ABANDONED_S = 2.0
"""A block that was brought and is not taken within this time makes way for others."""


class _Stored:
    """A block that is written, or to be. `data` is its content, while that is here; `wanted`, that it is to be read.

    Who may see a page changes; whose key it has does not.
    """

    __slots__ = ("_key", "bound", "data", "gone", "nonce", "number", "place", "since", "wanted", "written")

    def __init__(self, key: AESGCM | bytes, bound: bytes, data: bytes) -> None:
        self._key, self.bound = key, bound
        self.data: bytes | None = data
        self.written = self.wanted = self.gone = False
        self.number = self.place = 0
        self.since = 0.0
        self.nonce = b""

    @property
    def cipher(self) -> AESGCM:
        """Made when it is used, where the key is the block's own: so a block keeps 32 bytes, not a cipher's state."""
        return AESGCM(self._key) if isinstance(self._key, bytes) else self._key


class DiskTier(Tier):
    """At most `capacity` bytes of the file behind a descriptor. `model` names what the keys and values belong to.

    Its thread starts now: a sealed process can start none, nor load a cipher.
    """

    def __init__(
        self, descriptor: int, capacity: int, block_bytes: int, model: bytes, in_flight: int = IN_FLIGHT_BYTES
    ) -> None:
        self._file = descriptor
        self._model = sha256(model).digest()
        self._size = block_bytes + TAG_BYTES
        self._most = max(2, in_flight // self._size)
        self._shelf: Shelf[_Stored] = Shelf(capacity // self._size)
        self._busy: dict[_Stored, None] = {}
        """Those with content here, or on their way; the oldest first."""
        self._queue: deque[_Stored] = deque()
        self._working = self._closed = self._told = False
        self._changed = threading.Condition()
        AESGCM(bytes(KEY_BYTES)).encrypt(bytes(NONCE_BYTES), b"", b"")
        self._thread = threading.Thread(target=self._serve, name="cl-disk", daemon=True)
        self._thread.start()

    def room(self, most: int) -> int:
        with self._changed:
            most = min(most, self._shelf.places, self._most - len(self._busy))
            while self._shelf.free < most:
                self._forget(self._shelf.oldest())
            return max(0, most)

    def store(self, owner: Owner, bound: bytes, data: bytes) -> int | None:
        account = owner.account
        if account.cipher is None and not account.is_common:
            account.cipher = AESGCM(secrets.token_bytes(KEY_BYTES))
        with self._changed:
            if not self._shelf.free or len(self._busy) >= self._most:
                return None
            stored = _Stored(account.cipher or secrets.token_bytes(KEY_BYTES), self._model + owner.tag + bound, data)
            stored.number, stored.place = self._shelf.add(account, stored)
            stored.nonce = stored.number.to_bytes(NONCE_BYTES, "little")  # none is used twice, whatever the key
            self._enqueue(stored)
            return stored.number

    def fetch(self, number: int, bound: bytes) -> State:
        with self._changed:
            if (held := self._shelf.get(number)) is None:
                return State.LOST
            stored = held[1]
            if not stored.bound.endswith(bound):
                self._forget(number)
                return State.LOST
            if stored.data is not None:
                stored.wanted = not stored.written  # who cannot take it yet finds it here once it is written, too
                return State.HERE
            if not stored.wanted and self._has_room():
                stored.wanted = True
                self._enqueue(stored)
            return State.COMING

    def take(self, number: int) -> bytes | None:
        with self._changed:
            held = self._shelf.get(number)
            data = None if held is None else held[1].data
            if data is not None:
                self._forget(number)
            return data

    def discard(self, number: int) -> None:
        with self._changed:
            if self._shelf.get(number) is not None:
                self._forget(number)

    def settle(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and not self._working, seconds)

    def close(self) -> None:
        with self._changed:
            for number in list(self._shelf):
                self._forget(number)
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _has_room(self) -> bool:
        """Whether one more may be on its way. What was brought for nobody goes for it; it is on the disk still."""
        if len(self._busy) >= self._most:
            before = monotonic() - ABANDONED_S
            for stored in [one for one in self._busy if one.written and one.data is not None and one.since <= before]:
                stored.data = None
                del self._busy[stored]
        return len(self._busy) < self._most

    def _enqueue(self, stored: _Stored) -> None:
        self._busy[stored] = None
        self._queue.append(stored)
        self._changed.notify_all()

    def _forget(self, number: int) -> None:
        held = self._shelf.get(number)
        assert held is not None
        stored = held[1]
        self._shelf.remove(number)
        stored.gone, stored.data = True, None
        if stored in self._busy:
            del self._busy[stored]
        if stored in self._queue:
            self._queue.remove(stored)

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._working = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._queue or self._closed)
                if self._closed:
                    return
                stored = self._queue.popleft()
                self._working = True
            try:
                (self._bring if stored.written else self._put)(stored)
            except Exception as error:  # whatever it is (no memory, a cipher's error), the next may go well
                self._tell(error)
                with self._changed:
                    if not stored.gone:
                        self._forget(stored.number)
            del stored

    def _tell(self, error: Exception) -> None:
        """Once: if one block fails so, many may."""
        if not self._told:
            self._told = True
            log.error("A block was lost on its way to the disk or back, and more may be: %s.", where_raised(error))

    def _put(self, stored: _Stored) -> None:
        """Write one out. While the disk is slow, nothing plain is held."""
        if (sealed := self._sealed(stored)) is None:
            return
        whole = self._write(stored.place, sealed)
        with self._changed:
            stored.written = True
            if stored.gone:
                return
            if not whole:
                self._forget(stored.number)
            elif not stored.wanted:
                self._busy.pop(stored, None)
            elif stored not in self._queue:
                self._enqueue(stored)

    def _sealed(self, stored: _Stored) -> bytes | None:
        data = stored.data
        if data is None:
            return None  # taken or discarded before it was written
        sealed = stored.cipher.encrypt(stored.nonce, data, stored.bound)
        stored.data = None
        return sealed

    def _bring(self, stored: _Stored) -> None:
        """Read one back; one that is not what was written is lost."""
        try:
            data = stored.cipher.decrypt(stored.nonce, self._read(stored.place), stored.bound)
        except InvalidTag:
            data = None
        with self._changed:
            if stored.gone:
                return
            if data is None:
                self._forget(stored.number)
            else:
                stored.data, stored.since, stored.wanted = data, monotonic(), False

    def _write(self, place: int, data: bytes) -> bool:
        """Whether all of it was written; a disk that is full or broken is no error here."""
        try:
            os.lseek(self._file, place * self._size, os.SEEK_SET)
            return os.write(self._file, data) == len(data)
        except OSError:
            return False

    def _read(self, place: int) -> bytes:
        """What is there, be it too little."""
        try:
            os.lseek(self._file, place * self._size, os.SEEK_SET)
            return os.read(self._file, self._size)
        except OSError:
            return b""
