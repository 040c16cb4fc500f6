"""Which session lives in which vault, and for how long: names and counts."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from cloister.controller.vaults import Vault, Vaults
from cloister.errors import QueueFull
from cloister.fairness import payer_of


@dataclass(frozen=True)
class SessionKey:
    """Tenants of one trust group (Petridish §7.2) share names, and one vault for requests without a session."""

    group: str
    tenant: str
    name: str

    @classmethod
    def of(cls, tenant: str, group: str, name: str, *, keep: bool) -> "SessionKey":
        if group:
            return cls(group, "", name if keep else "")
        return cls("", tenant, name)

    @property
    def owner(self) -> str:
        return self.group or self.tenant

    @property
    def payer(self) -> str:
        return payer_of(self.owner)


@dataclass(eq=False)
class Session:
    key: SessionKey
    vault: Vault
    keep: bool = False
    requests: set[int] = field(default_factory=set)
    idle: asyncio.TimerHandle | None = None


def most_of_one(most: int) -> int:
    return most - most // 4


class Sessions:
    """At most `most`, of which one tenant may have three quarters; where all are taken, an idle session ends. While
    `several` tenants are here, a tenant that has a vault leaves the last spare one to a tenant without."""

    def __init__(
        self,
        vaults: Vaults,
        most: int,
        idle_s: float,
        on_open: Callable[[Vault], None],
        on_close: Callable[[Session], None],
        several: Callable[[], bool] = lambda: False,
    ) -> None:
        self._several, self._vaults, self._most = several, vaults, most
        self._most_of_one = most_of_one(most)
        self._idle_s, self._on_open, self._on_close = idle_s, on_open, on_close
        self._by_key: dict[SessionKey, Session] = {}
        self._held: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._by_key)

    def keep_within(self, most: int) -> None:
        self._most = min(self._most, most)
        self._most_of_one = most_of_one(self._most)

    def held_by(self, payer: str) -> int:
        return self._held[payer]

    def vaults(self) -> list[Vault]:
        return [session.vault for session in self._by_key.values()]

    def of_vault(self, vault: Vault) -> Session | None:
        return next((session for session in self._by_key.values() if session.vault is vault), None)

    def join(self, key: SessionKey, request_ids: Iterable[int], *, keep: bool) -> Session:
        session = self._by_key.get(key) or self._begin(key)
        session.keep = session.keep or keep
        session.requests.update(request_ids)
        if session.idle is not None:
            session.idle.cancel()
            session.idle = None
        return session

    def leave(self, session: Session, request_id: int) -> None:
        session.requests.discard(request_id)
        if session.requests or self._by_key.get(session.key) is not session:
            return
        if session.keep:
            session.idle = asyncio.get_running_loop().call_later(self._idle_s, self.end, session)
            self._by_key[session.key] = self._by_key.pop(session.key)  # the longest idle stand first
        else:
            self.end(session)

    def end_named(self, key: SessionKey) -> None:
        if (session := self._by_key.get(key)) is not None:
            self.end(session)

    def end(self, session: Session, wait_s: float = 0.0) -> None:
        if self._by_key.get(session.key) is not session:
            return
        del self._by_key[session.key]
        self._held -= Counter((session.key.payer,))
        if session.idle is not None:
            session.idle.cancel()
        session.vault.close(wait_s)
        self._on_close(session)

    def end_all_of(self, owner: str) -> None:
        for session in list(self._by_key.values()):
            if session.key.owner == owner:
                self.end(session)

    def end_all(self, wait_s: float = 0.0) -> None:
        for session in list(self._by_key.values()):
            self.end(session, wait_s)

    def has_room(self, tenant: str, name: str) -> bool:
        key = SessionKey("", tenant, name)
        return key in self._by_key or not self._is_full_for(key.payer) or self._that_makes_room(key.payer) is not None

    def _is_full_for(self, payer: str) -> bool:
        return self._held[payer] >= self._most_of_one or len(self._by_key) >= self._most

    def _that_makes_room(self, payer: str) -> Session | None:
        """An idle one of this payer, or of the payer that has the most."""
        mine = self._held[payer]
        idle = [session for session in self._by_key.values() if not session.requests]
        own = [session for session in idle if session.key.payer == payer]
        if own:
            return own[0]
        others = [session for session in idle if self._held[session.key.payer] > mine + 1]
        if mine >= self._most_of_one or not others:
            return None
        return max(others, key=lambda session: self._held[session.key.payer])

    def _begin(self, key: SessionKey) -> Session:
        mine = self._held[key.payer]
        if self._is_full_for(key.payer):
            if (idle := self._that_makes_room(key.payer)) is None:
                raise QueueFull("All vaults are in use.", retry_after=2)
            self.end(idle)
            if not self._vaults.has_one_to_take:
                raise QueueFull("The next vault waits for the place of one that ends.", retry_after=2)
        elif mine and not (self._vaults.has_one_soon and (self._vaults.has_one_beside_the_last or not self._several())):
            raise QueueFull("Others may need the next vault.", retry_after=2)
        session = self._by_key[key] = Session(key, self._vaults.take())
        self._held[key.payer] += 1
        self._on_open(session.vault)
        return session
