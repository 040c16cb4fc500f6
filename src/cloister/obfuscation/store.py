"""The substitutes of one user's secrets. A secret keeps its set: all that two sets would share is the real value. So a
request for more fakes, or for another method, gets the old set or is refused, and no set is forgotten."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Protocol

from msgspec import Meta, Struct

from cloister.errors import ObfuscationRefused
from cloister.obfuscation.tags import TaggedText

MAX_KEPT = 10_000
_Word = Annotated[str, Meta(min_length=1, max_length=512)]


class Kept(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One secret's substitutes, variant by variant, and the method that drew these λ."""

    values: Annotated[tuple[_Word, ...], Meta(min_length=1, max_length=512)]
    method: Annotated[str, Meta(min_length=1, max_length=32)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.values)})"


class Store(Protocol):
    """Secrets are the same in any capitals, whatever their category: two sets for two categories would share one."""

    def recall(self, texts: Iterable[TaggedText]) -> list[str]:
        """Known secrets that these texts may mention, spelt as their substitutes are."""

    def known(self) -> list[str]:
        """Those that were said while this process ran."""

    def find(self, secret: str) -> Kept | None: ...

    def spelling(self, secret: str) -> str:
        """As its substitutes are spelt: mentions in other capitals get substitutes in those."""

    def refuse_more(self, count: int) -> None:
        """ObfuscationRefused if there is no room for this number of secrets."""

    def keep(self, found: Mapping[str, Kept]) -> None:
        """By secret, as spelt when they were found. A secret that has some by now keeps those: ask `find` again."""

    def of(self, user: bytes) -> "Store":
        """Another user's; neither finds what the other kept."""


class MemoryStore:
    """For as long as this object lives: a vault's session, a client without a file."""

    def __init__(self, most: int = MAX_KEPT) -> None:
        self._most = most
        self._kept: dict[str, Kept] = {}
        self._spelt: dict[str, str] = {}

    def recall(self, texts: Iterable[TaggedText]) -> list[str]:
        return self.known()

    def known(self) -> list[str]:
        return list(self._spelt.values())

    def find(self, secret: str) -> Kept | None:
        return self._kept.get(secret.casefold())

    def spelling(self, secret: str) -> str:
        return self._spelt.get(secret.casefold(), secret)

    def refuse_more(self, count: int) -> None:
        if len(self._kept) + count > self._most:
            message = f"There would be more than {self._most} secrets, whose substitutes may not be forgotten."
            raise ObfuscationRefused(message, hint="Begin a new session.")

    def keep(self, found: Mapping[str, Kept]) -> None:
        self.refuse_more(sum(self.find(secret) is None for secret in found))
        for secret, kept in found.items():
            self._kept.setdefault(secret.casefold(), kept)
            self._spelt.setdefault(secret.casefold(), secret)

    def of(self, user: bytes) -> "MemoryStore":
        return MemoryStore(self._most)
