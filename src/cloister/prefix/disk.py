"""The tier on a disk: encrypted blocks in a file without a name (adr/0009), whose keys are in this process's memory.
Each tenant has a key, which goes when the tenant is forgotten; a public block's key goes with the block. A block is
bound to the model, its namespace and all tokens up to its end. A block that cannot be read, or was changed, is a miss.
One thread encrypts, writes, reads and decrypts in the order of the calls, so a slot may be reused at once; it survives
every error. Blocks in flight are bounded; they are plain before encryption, and after decryption until they are taken.
"""

import logging
import os
import secrets
import threading
from collections import deque
from dataclasses import dataclass
from hashlib import sha256
from time import monotonic

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from cloister.errors import where_raised
from cloister.prefix.node import Namespace
from cloister.prefix.tier import Slots, State, Tier

log = logging.getLogger(__name__)

KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
IN_FLIGHT_BYTES = 64 << 20  # all blocks in flight, beside the one that the thread works on
ABANDONED_S = 2.0  # a block that was read and not taken within this time makes room for others


@dataclass(slots=True, eq=False, repr=False)
class _Stored:
    """`data`: the content while in memory; `wanted`: read it back. A block keeps its key in a new namespace."""

    key: AESGCM | bytes
    bound: bytes
    data: bytes | None
    written: bool = False
    wanted: bool = False
    gone: bool = False
    number: int = 0
    slot: int = 0
    since: float = 0.0
    nonce: bytes = b""

    @property
    def cipher(self) -> AESGCM:
        return AESGCM(self.key) if isinstance(self.key, bytes) else self.key


class DiskTier(Tier):
    """`model` is part of what each block is bound to. The thread starts now: a sealed process cannot start threads."""

    def __init__(
        self, descriptor: int, capacity: int, block_bytes: int, model: bytes, in_flight: int = IN_FLIGHT_BYTES
    ) -> None:
        self._file = descriptor
        self._model = sha256(model).digest()
        self._size = block_bytes + TAG_BYTES
        self._most = max(2, in_flight // self._size)
        self._slots: Slots[_Stored] = Slots(capacity // self._size)
        self._busy: dict[_Stored, None] = {}  # with content in memory or in flight, oldest first
        self._queue: deque[_Stored] = deque()
        self._working = self._closed = self._logged = False
        self._changed = threading.Condition()
        AESGCM(bytes(KEY_BYTES)).encrypt(bytes(NONCE_BYTES), b"", b"")
        self._thread = threading.Thread(target=self._serve, name="cl-disk", daemon=True)
        self._thread.start()

    def room(self, most: int) -> int:
        with self._changed:
            most = min(most, self._slots.total, self._most - len(self._busy))
            while self._slots.free < most:
                self._forget(self._slots.oldest())
            return max(0, most)

    def store(self, namespace: Namespace, bound: bytes, data: bytes) -> int | None:
        tenant = namespace.tenant
        if tenant.cipher is None and tenant.name:  # not of shared pages, each of which has its own key
            tenant.cipher = AESGCM(secrets.token_bytes(KEY_BYTES))
        with self._changed:
            if not self._slots.free or len(self._busy) >= self._most:
                return None
            stored = _Stored(tenant.cipher or secrets.token_bytes(KEY_BYTES), self._model + namespace.tag + bound, data)
            stored.number, stored.slot = self._slots.add(tenant, stored)
            stored.nonce = stored.number.to_bytes(NONCE_BYTES, "little")  # unique over all keys
            self._enqueue(stored)
            return stored.number

    def fetch(self, number: int, bound: bytes) -> State:
        with self._changed:
            if (held := self._slots.get(number)) is None:
                return State.LOST
            stored = held[1]
            if not stored.bound.endswith(bound):
                self._forget(number)
                return State.LOST
            if stored.data is not None:
                stored.wanted = not stored.written  # a caller without room now finds it in memory after the write too
                return State.HERE
            if not stored.wanted and self._has_room():
                stored.wanted = True
                self._enqueue(stored)
            return State.COMING

    def take(self, number: int) -> bytes | None:
        with self._changed:
            held = self._slots.get(number)
            data = None if held is None else held[1].data
            if data is not None:
                self._forget(number)
            return data

    def discard(self, number: int) -> None:
        with self._changed:
            if self._slots.get(number) is not None:
                self._forget(number)

    def settle(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and not self._working, seconds)

    def close(self) -> None:
        with self._changed:
            for number in list(self._slots):
                self._forget(number)
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _has_room(self) -> bool:
        """Blocks that were read and not taken make room; the disk has them."""
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
        held = self._slots.get(number)
        assert held is not None
        stored = held[1]
        self._slots.remove(number)
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
            except Exception as error:  # no memory, a cipher's error: the next block may succeed
                self._log(error)
                with self._changed:
                    if not stored.gone:
                        self._forget(stored.number)
            del stored

    def _log(self, error: Exception) -> None:
        if not self._logged:
            self._logged = True
            log.error("A block was lost on its way to the disk or back; more may follow: %s.", where_raised(error))

    def _put(self, stored: _Stored) -> None:
        """While the disk is slow, the block's plain content is not in memory."""
        if stored.data is None:
            return  # taken or discarded before it was written
        sealed = self._encrypted(stored, stored.data)
        whole = self._write(stored.slot, sealed)
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

    def _encrypted(self, stored: _Stored, data: bytes) -> bytes:
        stored.data = None
        return stored.cipher.encrypt(stored.nonce, data, stored.bound)

    def _bring(self, stored: _Stored) -> None:
        try:
            data = stored.cipher.decrypt(stored.nonce, self._read(stored.slot), stored.bound)
        except InvalidTag:
            data = None
        with self._changed:
            if stored.gone:
                return
            if data is None:
                self._forget(stored.number)
            else:
                stored.data, stored.since, stored.wanted = data, monotonic(), False

    def _write(self, slot: int, data: bytes) -> bool:
        """Whether all of it was written. A full or broken disk is no error here."""
        try:
            os.lseek(self._file, slot * self._size, os.SEEK_SET)
            return os.write(self._file, data) == len(data)
        except OSError:
            return False

    def _read(self, slot: int) -> bytes:
        try:
            os.lseek(self._file, slot * self._size, os.SEEK_SET)
            return os.read(self._file, self._size)
        except OSError:
            return b""
