"""One generation as a party's desk knows it: whose it is, what was announced, what may come next. Knows no engine."""

from __future__ import annotations

import hashlib
from time import monotonic

import msgspec

from cloister.errors import InvalidRequest
from cloister.messages.mpc import Piece, Put, Run, Terms
from cloister.mpc.config import PartiesConfig
from cloister.mpc.line import Line
from cloister.mpc.sizes import share_bytes

_MIB = 1 << 20
_MOST_SHARES = 4096


class Session:
    """One generation as the desk knows it: whose it is, and what was announced."""

    def __init__(self, name: bytes, owner: Line, terms: Terms) -> None:
        self.name = name
        self.owner: Line | None = owner
        self.touched = monotonic()
        self.opening = True
        self.running = False
        self.asked: Run | None = None
        self._terms = terms
        self._runs = 0
        self._left = 0
        self._bytes = 0
        self._announced: list[Put] = []

    @property
    def busy(self) -> bool:
        return self.opening or self.asked is not None

    def put(self, message: Put, config: PartiesConfig) -> None:
        """A share is announced."""
        if self._left or self.asked is not None:
            raise InvalidRequest("A share must not be announced now.")
        self._left = share_bytes(message.head, config.protocol)
        self._bytes += self._left
        if self._bytes > config.limits.session_mib * _MIB or len(self._announced) > _MOST_SHARES:
            raise InvalidRequest(f"A session may be dealt {config.limits.session_mib} MiB of shares.")
        self._announced.append(message)

    def piece(self, message: Piece) -> None:
        self._left -= len(message.data)
        if self._left < 0:
            raise InvalidRequest("A share has more bytes than were announced.")

    def ask(self, message: Run) -> None:
        """A run, when nothing is missing for it."""
        if self.opening or self._left or self.asked is not None or message.number != self._runs:
            raise InvalidRequest("A run must not be asked for now.")
        self.asked = message

    def done(self) -> None:
        self.asked, self.running = None, False
        self._runs += 1
        self._announced.clear()
        self.touched = monotonic()

    def digest(self, epoch: int) -> bytes:
        """Of all that must be the same at all parties for their engines to run together."""
        return hashlib.sha256(
            msgspec.json.encode((epoch, self._terms, [each.head for each in self._announced], self.asked))
        ).digest()
