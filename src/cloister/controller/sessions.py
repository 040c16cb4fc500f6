"""Which session lives in which vault, and for how long. It knows names and counts, no prompt and no token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from cloister.controller.vaults import Vault, Vaults
from cloister.errors import QueueFull


@dataclass(frozen=True)
class SessionKey:
    """Whose session it is. Tenants that trust each other (Petridish §7.2) share names, and one vault for all that
    is not named. Nobody else's name ever leads to their vault."""

    group: str
    tenant: str
    name: str

    @classmethod
    def of(cls, tenant: str, group: str, name: str, *, keep: bool) -> SessionKey:
        if group:
            return cls(group, "", name if keep else "")
        return cls("", tenant, name)


@dataclass(eq=False)
class Session:
    """One vault and the requests it serves."""

    key: SessionKey
    vault: Vault
    keep: bool = False
    requests: set[int] = field(default_factory=set)
    idle: asyncio.TimerHandle | None = None


class Sessions:
    """`on_open` and `on_close` are told of every vault that begins or ceases to serve a session."""

    def __init__(
        self,
        vaults: Vaults,
        most: int,
        idle_s: float,
        on_open: Callable[[Vault], None],
        on_close: Callable[[Session], None],
    ) -> None:
        self._vaults = vaults
        self._most = most
        self._idle_s = idle_s
        self._on_open = on_open
        self._on_close = on_close
        self._by_key: dict[SessionKey, Session] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def vaults(self) -> list[Vault]:
        return [session.vault for session in self._by_key.values()]

    def of_vault(self, vault: Vault) -> Session | None:
        return next((session for session in self._by_key.values() if session.vault is vault), None)

    def join(self, key: SessionKey, request_id: int, *, keep: bool) -> Session:
        """The session for one more request; begun if there is none."""
        session = self._by_key.get(key) or self._begin(key)
        session.keep = session.keep or keep
        session.requests.add(request_id)
        if session.idle is not None:
            session.idle.cancel()
            session.idle = None
        return session

    def leave(self, session: Session, request_id: int) -> None:
        """A request ended. The session ends with its last one, or waits for the next."""
        session.requests.discard(request_id)
        if session.requests or self._by_key.get(session.key) is not session:
            return
        if session.keep:
            session.idle = asyncio.get_running_loop().call_later(self._idle_s, self.end, session)
            self._by_key[session.key] = self._by_key.pop(session.key)  # the longest idle stand first
        else:
            self.end(session)

    def end_named(self, key: SessionKey) -> None:
        """Forget a session now, whatever it does."""
        if (session := self._by_key.get(key)) is not None:
            self.end(session)

    def end(self, session: Session, wait_s: float = 0.0) -> None:
        """Kill its vault; what it held is gone with it."""
        if self._by_key.get(session.key) is not session:
            return
        del self._by_key[session.key]
        if session.idle is not None:
            session.idle.cancel()
        session.vault.close(wait_s)
        self._on_close(session)

    def end_all(self, wait_s: float = 0.0) -> None:
        for session in list(self._by_key.values()):
            self.end(session, wait_s)

    def _begin(self, key: SessionKey) -> Session:
        if len(self._by_key) >= self._most:
            idle = next((session for session in self._by_key.values() if not session.requests), None)
            if idle is None:
                raise QueueFull("All vaults are in use.", retry_after=2)
            self.end(idle)
        session = self._by_key[key] = Session(key, self._vaults.take())
        self._on_open(session.vault)
        return session
