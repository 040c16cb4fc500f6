"""One request's answer as a frontend reads it; `Mailbox` and `Grid` keep timing from showing more than it must."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from math import ceil

from msgspec.structs import replace

from cloister.errors import CloisterError
from cloister.messages.generation import Failed, Tokens
from cloister.messages.lifecycle import raised


class Grid:
    """Delays an answer so that its first token's time tells a step of a grid and no more (SafeKV §III). The grid begins
    with the request: with one grid for all, a sender could choose the moment between a hit and a miss."""

    def __init__(self, step_s: float, begun: float) -> None:
        self._step = step_s
        self._begun = begun
        self._delay: float | None = None
        self._last = begun

    def leaves(self, now: float) -> float:
        if self._delay is None:
            self._delay = self._begun + ceil((now - self._begun) / self._step) * self._step - now
        self._last = max(self._last, now + self._delay)  # what is added and taken away again is rounded
        return self._last


Event = Tokens | Failed | CloisterError


class Mailbox:
    """`put` never waits. Between first and last, events are read every `beat_s` (0: at once; "Whisper Leak", 2025)."""

    def __init__(self, beat_s: float = 0.0, grid: Grid | None = None) -> None:
        self._beat_s = beat_s
        self._grid = grid
        self._held: deque[Event] = deque()
        self._events: list[Event] = []
        self._readable = False
        self._begun = False
        self._beat: asyncio.TimerHandle | None = None
        self._reader: asyncio.Future[None] | None = None

    def put(self, event: Event) -> None:
        if self._grid is None:
            self._enter(event)
            return
        if isinstance(event, Tokens) and event.shared:
            event = replace(event, cached=event.cached - event.shared, shared=0)
        self._held.append(event)  # in order, whatever the loop does with calls of one time
        loop = asyncio.get_running_loop()
        loop.call_at(self._grid.leaves(loop.time()), lambda: self._enter(self._held.popleft()))

    def _enter(self, event: Event) -> None:
        self._events.append(event)
        if not (self._beat_s and self._begun) or _is_last(event):
            self._open()
        elif self._beat is None:
            loop = asyncio.get_running_loop()
            now = loop.time()
            self._beat = loop.call_at(now + self._beat_s - now % self._beat_s, self._open)

    async def take(self) -> Event:
        """Wait until there is something to read: an error, or all tokens of a sequence that came before one."""
        while not self._readable:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        self._begun = True
        events = self._events
        count = next((at for at, event in enumerate(events) if not isinstance(event, Tokens)), len(events))
        if not count:
            self._events, self._readable = events[1:], len(events) > 1
            return events[0]
        came = [event for event in events[:count] if isinstance(event, Tokens)]
        taken = [event for event in came if event.sequence == came[0].sequence]
        rest: list[Event] = [event for event in came if event.sequence != came[0].sequence]
        if rest and len(taken) > 1 and taken[-1].finish is not None:
            rest.append(taken.pop())  # the end of all waits until the others are read
        self._events = rest + events[count:]
        self._readable = bool(self._events)
        return taken[0] if len(taken) == 1 else _joined(taken)

    def _open(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None
        self._readable = bool(self._events)  # all may have been read since the beat was set
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


def _is_last(event: Event) -> bool:
    return not isinstance(event, Tokens) or event.finish is not None


def _joined(parts: list[Tokens]) -> Tokens:
    scores = [part.logprobs for part in parts if part.logprobs is not None]
    scored = [part.prompt_logprobs for part in parts if part.prompt_logprobs is not None]
    return replace(
        parts[0],
        tokens=tuple(token for part in parts for token in part.tokens),
        logprobs=tuple(score for part in scores for score in part) if scores else None,
        prompt_logprobs=tuple(score for part in scored for score in part) if scored else None,
        finish=parts[-1].finish,
        progress=next((part.progress for part in reversed(parts) if part.progress), None),
        cached=sum(part.cached for part in parts),
        shared=sum(part.shared for part in parts),
    )


@dataclass(eq=False, repr=False)
class TokenStream(AsyncIterator[Tokens]):
    """The last Tokens has `finish` set. `request_id` is for `Backend.view`."""

    request_id: int
    prompt_tokens: int
    _events: Mailbox
    _on_leave: Callable[[], None]
    sequences: int = 1
    _ended: bool = False

    async def __anext__(self) -> Tokens:
        if self._ended:
            raise StopAsyncIteration
        event = await self._events.take()
        if not isinstance(event, Tokens):
            self._ended = True
            raise raised(event)
        self._ended = event.finish is not None
        return event

    async def aclose(self) -> None:
        """Leave: before its end, this cancels the request and frees what it held."""
        if not self._ended:
            self._ended = True
            self._on_leave()
