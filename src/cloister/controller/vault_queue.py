"""Requests that wait for a vault while all are in use: first come, first served, and no more than may wait.

What waits is what came from a frontend, unread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from cloister.errors import QueueFull


class Numbered(Protocol):
    """Whatever can wait."""

    @property
    def request_id(self) -> int: ...


Waiting = TypeVar("Waiting", bound=Numbered)


class VaultQueue(Generic[Waiting]):
    """`serve` takes a request, or raises QueueFull while there is no vault for it."""

    def __init__(self, most: int, serve: Callable[[Waiting], None]) -> None:
        self._most = most
        self._serve = serve
        self._waiting: dict[int, Waiting] = {}
        self._moving = False

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._waiting

    def enter(self, ask: Waiting) -> None:
        """Serve the request now, or let it wait behind those who came before."""
        if not self._waiting:
            try:
                self._serve(ask)
                return
            except QueueFull:
                pass
        if len(self._waiting) >= self._most:
            raise QueueFull("All vaults are in use and too many requests wait for one.", retry_after=2)
        self._waiting[ask.request_id] = ask

    def leave(self, request_id: int) -> bool:
        """Whether the request waited; it does no more."""
        return self._waiting.pop(request_id, None) is not None

    def waiting_from(self, frontend: int, bits: int) -> list[int]:
        """The requests of one frontend, whose number stands above so many bits of their ids."""
        return [request_id for request_id in self._waiting if request_id >> bits == frontend]

    def move(self) -> None:
        """A vault may be free: serve as many as there are vaults for."""
        if self._moving:  # serving one may end a session, which calls again
            return
        self._moving = True
        try:
            while self._waiting:
                ask = next(iter(self._waiting.values()))
                try:
                    self._serve(ask)
                except QueueFull:
                    return
                self._waiting.pop(ask.request_id, None)
        finally:
            self._moving = False
