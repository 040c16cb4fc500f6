"""Which tokens were spent here. A token is on the disk before its request is served: it counts as spent after a crash.

One file for each of the issuer's keys, of nonces alone; the file goes with its key. No identity is kept.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from cloister.access.tokens import Token
from cloister.errors import CloisterError, QueueFull, TokenInvalid, TokenSpent
from cloister.fairness import ANONYMOUS
from cloister.files import held, make_folder, needed, sync

NONCE_BYTES = 32
MOST_OF_A_KEY = 4_000_000
"""About half a gigabyte of memory; more tokens of one key are refused until the next key counts."""


class SpentTokens:
    """For one process: a folder that another one holds is refused, since each would take the tokens the other took."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[bytes, set[bytes]] = {}
        self._files: dict[bytes, int] = {}
        with needed(f"Spent tokens cannot be kept in {folder}"):
            make_folder(folder, mode=0o700)
            said = f"Another process keeps its spent tokens in {folder}."
            self._lock = held(folder / ".lock", said, "Give each node a folder with --spent.")

    def spend(self, tokens: Sequence[Token]) -> list[CloisterError | None]:
        """None for each token that is spent now; all of them with one write to the disk for each key."""
        outcome: list[CloisterError | None] = []
        fresh: dict[bytes, list[bytes]] = {}
        for token in tokens:
            seen, new = self._of(token.key_id), fresh.setdefault(token.key_id, [])
            if token.nonce in seen:
                outcome.append(TokenSpent("This token was spent before.", hint="Take another one."))
            elif len(seen) >= MOST_OF_A_KEY:
                outcome.append(
                    QueueFull("This node took all the tokens of this key that it can remember.", retry_after=3600)
                )
            else:
                seen.add(token.nonce)  # also if writing fails: then it is spent, and not served
                new.append(token.nonce)
                outcome.append(None)
        for key_id, nonces in fresh.items():
            if nonces:
                self._write(self._files[key_id], b"".join(nonces))
        return outcome

    def forget(self, counting: Iterable[bytes]) -> None:
        """Drop what belongs to keys that no longer count: their tokens are refused as expired."""
        kept = set(counting)
        for key_id in list(self._files):
            if key_id not in kept:
                os.close(self._files.pop(key_id))
                del self._seen[key_id]
        with needed(f"{self._folder} cannot be read"):
            for path in self._folder.glob("*.spent"):
                if path.stem not in {each.hex() for each in kept}:
                    with suppress(FileNotFoundError):
                        path.unlink()

    def close(self) -> None:
        os.close(self._lock)
        while self._files:
            os.close(self._files.popitem()[1])
        self._seen.clear()

    def _of(self, key_id: bytes) -> set[bytes]:
        if (seen := self._seen.get(key_id)) is not None:
            return seen
        path = self._folder / f"{key_id.hex()}.spent"
        with needed(f"{path} cannot be opened"):
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            data = path.read_bytes()
            if torn := len(data) % NONCE_BYTES:  # a crash while it was written: that token was not served
                os.ftruncate(file, len(data) - torn)
            sync(self._folder)
        self._files[key_id] = file
        nonces = (data[at : at + NONCE_BYTES] for at in range(0, len(data) - torn, NONCE_BYTES))
        self._seen[key_id] = set(nonces)
        return self._seen[key_id]

    @staticmethod
    def _write(file: int, data: bytes) -> None:
        with needed("A spent token cannot be written down"):
            # A part of a nonce that a full disk left would move all later ones.
            whole = os.fstat(file).st_size // NONCE_BYTES * NONCE_BYTES
            os.ftruncate(file, whole)
            while data:
                data = data[os.write(file, data) :]
            os.fdatasync(file)


def tenant_of(token: Token) -> str:
    """The tenant of the one request that the token pays for: nothing links it with another."""
    if len(token.nonce) != NONCE_BYTES:
        raise TokenInvalid("The token's nonce has another length.")
    return f"{ANONYMOUS}{token.nonce[:16].hex()}"
