"""The requests that wait for a vault, unread, bounded by tenant. The tenant with the fewest vaults is next."""

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from cloister.controller.requests import frontend_of
from cloister.errors import QueueFull
from cloister.messages.controller_frontend import Ask
from cloister.messages.controller_vault import AssignPrompt
from cloister.messages.prompts import LockedPrompt
from cloister.messages.types import ExtraAnswer, SamplingParams

MAX_BYTES_PER_TENANT = 32 * 1024 * 1024  # of prompts that wait for a vault


@dataclass(eq=False, repr=False)
class PendingRequest:
    """`seeds`: of each answer by its request id; a cancelled one is taken out."""

    ask: Ask
    prompt: bytes | LockedPrompt
    seeds: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        ask = self.ask
        self.seeds = {ask.request_id: ask.params.seed} | {each.request_id: each.seed for each in ask.also}

    @property
    def owner(self) -> str:
        return self.ask.group or self.ask.tenant

    @property
    def bytes(self) -> int:
        return len(self.prompt.data if isinstance(self.prompt, LockedPrompt) else self.prompt)

    @property
    def params(self) -> dict[int, SamplingParams]:
        return {one: replace(self.ask.params, seed=seed) for one, seed in self.seeds.items()}

    @property
    def assignment(self) -> AssignPrompt:
        (first, params), *others = self.params.items()
        also = tuple(ExtraAnswer(one, each.seed) for one, each in others)
        return AssignPrompt(first, self.ask.level, self.prompt, params, also, self.ask.obfuscation)


class VaultQueue:
    """First come, first served within a tenant. `serve` raises QueueFull while there is no vault for this tenant."""

    def __init__(self, most: int, serve: Callable[[PendingRequest], None], held: Callable[[str], int]) -> None:
        self._most = most
        self._most_of_one = max(1, most // 2) if most else 0
        self._serve, self._held = serve, held
        self._waiting: dict[int, PendingRequest] = {}
        self._lines: dict[str, list[PendingRequest]] = {}
        self._moving = False

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._waiting

    def enter(self, asked: PendingRequest) -> None:
        line = self._lines.setdefault(asked.owner, [])
        line.append(asked)
        self._waiting.update(dict.fromkeys(asked.seeds, asked))
        self.move()
        if asked not in line:
            return
        full = None
        if (
            len(self._waiting) - len(asked.seeds) >= self._most
        ):  # there is room for all answers to a prompt, or for none
            full = "All vaults are in use and too many requests wait for one."
        count, size = sum(len(one.seeds) for one in line), sum(one.bytes for one in line)
        if len(line) > 1 and (count > self._most_of_one or size > MAX_BYTES_PER_TENANT):
            full = "Too many of your requests wait for a vault already."
        if full:
            self._forget(asked)
            raise QueueFull(full, retry_after=2)

    def leave(self, request_id: int) -> bool:
        if (asked := self._waiting.pop(request_id, None)) is None:
            return False
        del asked.seeds[request_id]
        if not asked.seeds:
            self._forget(asked)
        return True

    def leave_all_of(self, frontend: int) -> None:
        for request_id in [one for one in self._waiting if frontend_of(one) == frontend]:
            self.leave(request_id)

    def move(self) -> None:
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
            asked = self._lines[owner][0]
            try:
                self._serve(asked)
            except QueueFull:
                continue  # this tenant has its share; another may have less
            self._forget(asked)
            return True
        return False

    def _forget(self, asked: PendingRequest) -> None:
        for request_id in asked.seeds:
            self._waiting.pop(request_id, None)
        line = self._lines.get(asked.owner, [])
        if asked in line:
            line.remove(asked)
        if not line:
            self._lines.pop(asked.owner, None)
