"""One request's answer as a frontend reads it: tokens in order, ended by `finish`, an error, or the reader leaving."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from cloister.backend.base import AnswerStream
from cloister.backend.mailbox import Mailbox
from cloister.messages.failure import raised
from cloister.messages.generation import Tokens


class TokenStream(AnswerStream):
    """Closing it before its end cancels the request, also when nothing was read yet."""

    def __init__(self, request_id: int, prompt_tokens: int, events: Mailbox, on_leave: Callable[[], None]) -> None:
        self.request_id = request_id
        self.prompt_tokens = prompt_tokens
        self._events = events
        self._on_leave = on_leave
        self._ended = False

    async def asend(self, value: None) -> Tokens:
        if self._ended:
            raise StopAsyncIteration
        event = await self._events.take()
        if not isinstance(event, Tokens):
            self._ended = True
            raise raised(event)
        self._ended = event.finish is not None
        return event

    async def athrow(
        self,
        typ: Any,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
    ) -> Tokens:
        self._leave()
        raise typ if isinstance(typ, BaseException) else typ(val)

    async def aclose(self) -> None:
        self._leave()

    def _leave(self) -> None:
        if not self._ended:
            self._ended = True
            self._on_leave()
