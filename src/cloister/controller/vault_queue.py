"""The requests that wait for a vault, unread. Turns go by tenant: whoever has the fewest vaults is next.

What a tenant may leave waiting is bounded in number and in bytes, before it is taken in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cloister.controller.requests import frontend_of
from cloister.errors import QueueFull
from cloister.messages.frontend import Ask
from cloister.messages.prompts import LockedPrompt

MAX_BYTES_PER_TENANT = 32 * 1024 * 1024
"""Of prompts that wait for a vault."""


@dataclass(frozen=True, repr=False)
class Asked:
    """What a frontend asks for, and the prompt as its reader will get it."""

    ask: Ask
    prompt: bytes | LockedPrompt

    @property
    def request_id(self) -> int:
        return self.ask.request_id

    @property
    def owner(self) -> str:
        """Whose turn and whose share it takes: a trust group's is one."""
        return self.ask.group or self.ask.tenant

    @property
    def bytes(self) -> int:
        return len(self.prompt.data if isinstance(self.prompt, LockedPrompt) else self.prompt)


class VaultQueue:
    """First come, first served within a tenant. `serve` takes a request, or raises QueueFull while there is no vault
    for this tenant; `held` says how many vaults a tenant has."""

    def __init__(self, most: int, serve: Callable[[Asked], None], held: Callable[[str], int]) -> None:
        self._most = most
        self._most_of_one = max(1, most // 2) if most else 0
        self._serve = serve
        self._held = held
        self._waiting: dict[int, Asked] = {}
        self._lines: dict[str, dict[int, Asked]] = {}
        self._moving = False

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._waiting

    def enter(self, asked: Asked) -> None:
        """Serve the request now, or let it wait for its turn; QueueFull where too much waits already."""
        line = self._lines.setdefault(asked.owner, {})
        waiting = sum(other.bytes for other in line.values())
        line[asked.request_id] = self._waiting[asked.request_id] = asked
        self.move()
        if asked.request_id not in self._waiting:
            return
        if len(self._waiting) > self._most:
            self.leave(asked.request_id)
            raise QueueFull("All vaults are in use and too many requests wait for one.", retry_after=2)
        if len(line) > self._most_of_one or waiting + asked.bytes > MAX_BYTES_PER_TENANT:
            self.leave(asked.request_id)
            raise QueueFull("Too many of your requests wait for a vault already.", retry_after=2)

    def leave(self, request_id: int) -> bool:
        """Whether the request waited; it does no more."""
        if (asked := self._waiting.pop(request_id, None)) is None:
            return False
        line = self._lines[asked.owner]
        del line[request_id]
        if not line:
            del self._lines[asked.owner]
        return True

    def leave_all_of(self, frontend: int) -> None:
        for request_id in [one for one in self._waiting if frontend_of(one) == frontend]:
            self.leave(request_id)

    def move(self) -> None:
        """A vault may be free: serve as many as there are vaults for."""
        if self._moving:  # serving one may end a session, which calls again
            return
        self._moving = True
        try:
            while self._serve_one():
                pass
        finally:
            self._moving = False

    def _serve_one(self) -> bool:
        for owner in sorted(self._lines, key=self._held):
            asked = next(iter(self._lines[owner].values()))
            try:
                self._serve(asked)
            except QueueFull:
                continue  # this tenant has its share; another may have less
            self.leave(asked.request_id)
            return True
        return False
