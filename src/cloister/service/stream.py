"""One request's answer as the front reads it: tokens in order, ended by `finish`, an error, or the reader leaving."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any

from cloister.errors import CloisterError, error_from_code
from cloister.messages.generation import Failed, Tokens
from cloister.service.base import AnswerStream

Event = Tokens | Failed | CloisterError


class TokenStream(AnswerStream):
    """Closing it before its end cancels the request, also when nothing was read yet."""

    def __init__(
        self, request_id: int, prompt_tokens: int, events: asyncio.Queue[Event], on_leave: Callable[[], None]
    ) -> None:
        self.request_id = request_id
        self.prompt_tokens = prompt_tokens
        self._events = events
        self._on_leave = on_leave
        self._ended = False

    async def asend(self, value: None) -> Tokens:
        if self._ended:
            raise StopAsyncIteration
        event = await self._events.get()
        if not isinstance(event, Tokens):
            self._ended = True
            raise raised(event)
        while event.finish is None and not self._events.empty():
            following = self._events.get_nowait()
            if not isinstance(following, Tokens):
                self._events.put_nowait(following)
                break
            event = _joined(event, following)
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


def raised(event: Failed | CloisterError) -> CloisterError:
    """The error to raise for an event that ends a request."""
    if isinstance(event, CloisterError):
        return event
    return error_from_code(event.code, event.message, retry_after=event.retry_after, param=event.param)


def _joined(first: Tokens, second: Tokens) -> Tokens:
    """Two messages that wait together are read as one."""
    logprobs = (
        None if first.logprobs is None and second.logprobs is None else (first.logprobs or ()) + (second.logprobs or ())
    )
    return Tokens(
        request_id=first.request_id,
        tokens=first.tokens + second.tokens,
        logprobs=logprobs,
        prompt_logprobs=first.prompt_logprobs or second.prompt_logprobs,
        finish=second.finish,
        progress=second.progress or first.progress,
    )
