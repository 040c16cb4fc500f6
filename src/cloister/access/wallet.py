"""A user's tokens in a file for its owner alone (0600). A token leaves the file before its use: none is used twice."""

import base64
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from cloister.access.tokens import Token
from cloister.errors import CloisterError, SetupError
from cloister.files import make_folder, needed, only_one, read_private, write_whole

MOST_TOKENS = 10_000
_MOST_BYTES = 8 << 20


class NoTokens(CloisterError, code="no_tokens"):
    """The wallet is empty, and the issuer gives no more for now."""


class _Content(Struct, frozen=True, forbid_unknown_fields=True):
    tokens: Annotated[list[Annotated[str, Meta(pattern=r"\A[A-Za-z0-9+/]{472}\Z")]], Meta(max_length=MOST_TOKENS)] = []


class Wallet:
    """Several processes may share it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = path.with_name(f".{path.name}.lock")

    def add(self, tokens: Iterable[Token]) -> int:
        """How many there are now."""
        with self._held():
            kept = self._read() + [_written(token) for token in tokens]
            if len(kept) > MOST_TOKENS:
                raise SetupError(f"The wallet {self._path} holds {MOST_TOKENS} tokens at most.", hint="Fetch fewer.")
            self._write(kept)
            return len(kept)

    def take(self, usable: Iterable[bytes]) -> tuple[Token, int]:
        """The oldest token of one of these keys, and how many are left. Others have expired, and are dropped."""
        ids = set(usable)
        with self._held():
            kept = [each for each in self._read() if _key_id(each) in ids]
            if not kept:
                raise NoTokens("There is no token left.", hint="The issuer gives more to who shows an API key.")
            token = Token.decode(base64.b64decode(kept[0]))
            self._write(kept[1:])
            return token, len(kept) - 1

    def count(self, usable: Iterable[bytes]) -> int:
        ids = set(usable)
        with self._held():
            return sum(_key_id(each) in ids for each in self._read())

    def _held(self) -> AbstractContextManager[None]:
        with needed(f"The wallet {self._path} cannot be opened"):
            make_folder(self._path.parent, mode=0o700)
        return only_one(self._lock)

    def _read(self) -> list[str]:
        if not self._path.exists():
            return []
        try:
            return msgspec.json.decode(read_private(self._path, _MOST_BYTES, "wallet"), type=_Content).tokens
        except msgspec.MsgspecError:
            hint = "Move it away; the tokens in it are lost."
            raise SetupError(f"The wallet {self._path} does not decode.", hint=hint) from None

    def _write(self, tokens: list[str]) -> None:
        with needed(f"The wallet {self._path} cannot be written"):
            write_whole(self._path, msgspec.json.encode(_Content(tokens)), mode=0o600)


def _written(token: Token) -> str:
    return base64.b64encode(token.encode()).decode()


def _key_id(written: str) -> bytes:
    """Bytes 66 to 98 of a token; the rest is not decoded."""
    return base64.b64decode(written[88:132])[:32]
