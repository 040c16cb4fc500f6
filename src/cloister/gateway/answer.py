"""The two ways an answer goes out: whole, or as server-sent events while it is being generated.

Raw ASGI, because a stream passes here once per token. An answer sends a reply's bytes and does not know their shape.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cloister.errors import CloisterError, RequestTimeout
from cloister.gateway.errors import describe, log_unexpected
from cloister.gateway.generation import ClientGone, Generation
from cloister.gateway.reply import DONE, Reply, usage_of

_LAST_WORD_S = 2.0


class Answer(Response):
    """Runs a generation for as long as the response takes, and never beyond the deadline (in the loop's time)."""

    media_type = "application/json"

    def __init__(self, generation: Generation, reply: Reply, deadline: float, headers: Mapping[str, str]) -> None:
        super().__init__(headers=headers)
        del self.headers["content-length"]
        self._generation = generation
        self._reply = reply
        self._deadline = deadline

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        limit = asyncio.timeout_at(self._deadline)
        try:
            async with limit, self._generation.watched_by(receive):
                await self.generate(send)
        except ClientGone:
            return
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                error = RequestTimeout("The request ran longer than this server allows.")
            await self.fail(error, send)

    async def generate(self, send: Send) -> None:
        """Generate all of it and send the whole."""
        generation = self._generation
        while not generation.done:
            await generation.news()
        deltas = [choice.take() for choice in generation.choices]
        body = self._reply.whole(deltas, usage_of(generation.prompt_tokens, generation.output_tokens))
        self.headers["content-length"] = str(len(body))
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": body})

    async def fail(self, error: Exception, send: Send) -> None:
        """Nothing was sent yet: whoever handles errors may still choose the status."""
        raise error


class StreamedAnswer(Answer):
    """Server-sent events. The response starts with the first news, so that an earlier error has its own status."""

    media_type = "text/event-stream"

    def __init__(
        self,
        generation: Generation,
        reply: Reply,
        deadline: float,
        headers: Mapping[str, str],
        *,
        include_usage: bool,
    ) -> None:
        super().__init__(generation, reply, deadline, headers)
        self.headers["cache-control"] = "no-cache"
        self.headers["x-accel-buffering"] = "no"
        self._include_usage = include_usage
        self._started = False

    async def generate(self, send: Send) -> None:
        generation, reply = self._generation, self._reply
        while not generation.done:
            concerned = await generation.news()
            pieces = [reply.events(choice.index, choice.take()) for choice in concerned]
            if not self._started:
                self._started = True
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                pieces[:0] = [reply.opening(choice.index) for choice in generation.choices]
            if generation.done:
                if self._include_usage:
                    pieces.append(reply.usage_event(usage_of(generation.prompt_tokens, generation.output_tokens)))
                pieces.append(DONE)
            if events := b"".join(pieces):
                await send({"type": "http.response.body", "body": events, "more_body": not generation.done})

    async def fail(self, error: Exception, send: Send) -> None:
        """The status is out already: tell the error as an event and end the stream."""
        if not self._started:
            raise error
        if not isinstance(error, CloisterError):
            log_unexpected(error)
        event = b"data: %b\n\n" % msgspec.json.encode(describe(error)[1])
        # A client that reads nothing must not hold the connection beyond the deadline.
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORD_S):
                await send({"type": "http.response.body", "body": event, "more_body": False})
