"""All sealed requests under way: begins them, stops them, and sends what they have to say together.

A step of the service brings a token to every answer. What all of them make of it in one turn of the loop goes to the
controller as one frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from starlette.types import ASGIApp

from cloister.errors import CloisterError
from cloister.gateway.errors import log_unexpected
from cloister.messages.failure import failed
from cloister.messages.frontend import MAX_PART_BYTES, Leave, SealedPart, Taken
from cloister.messages.sealed_api import Serve
from cloister.sealed_api.exchange import Exchange, why

MAX_TOGETHER_BYTES = 1 << 22


class Desk:
    """`send` takes messages that go out in one frame."""

    def __init__(self, app: ASGIApp, send: Callable[..., None]) -> None:
        self._app = app
        self._send = send
        self._exchanges: dict[int, Exchange] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._eager: dict[int, Exchange] = {}

    def __len__(self) -> int:
        return len(self._exchanges)

    def hear(self, message: Serve | Taken | Leave) -> None:
        number = message.request_id
        if isinstance(message, Serve):
            self._exchanges[number] = exchange = Exchange(message, self._wants_out)
            self._tasks[number] = asyncio.create_task(self._answer(exchange))
        elif number in self._exchanges:
            under_way = self._exchanges[number]
            under_way.taken(message.bytes) if isinstance(message, Taken) else under_way.leave()

    async def _answer(self, exchange: Exchange) -> None:
        try:
            await exchange.run(self._app)
        except Exception as error:
            if not isinstance(error, CloisterError):
                log_unexpected(error)
            self._flush()
            self._send(failed(exchange.number, why(error)))
            exchange.erase()
        finally:
            self._exchanges.pop(exchange.number, None)
            self._tasks.pop(exchange.number, None)

    def _wants_out(self, exchange: Exchange) -> None:
        self._eager[exchange.number] = exchange
        if len(self._eager) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        eager, self._eager = self._eager, {}
        together: list[msgspec.Struct] = []
        size = 0
        for exchange in eager.values():
            sealed = exchange.flush()
            for start in range(0, len(sealed), MAX_PART_BYTES):
                piece = sealed[start : start + MAX_PART_BYTES]
                whole = exchange.ended and start + MAX_PART_BYTES >= len(sealed)
                together.append(SealedPart(exchange.number, piece, whole))
                size += len(piece)
                if size > MAX_TOGETHER_BYTES:
                    self._send(*together)
                    together, size = [], 0
        if together:
            self._send(*together)
