"""A wire without sockets: who plays the server decides what comes of which request, and when."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx2

END = b""


def event(text: str = "", finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


WORD, SILENCE, LAST = event("word "), event(), event(finish="stop") + b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"no"}}\n\n'


class Incoming(httpx2.AsyncByteStream):
    """One answer's body: END is its end, an exception cuts it."""

    def __init__(self) -> None:
        self.come: asyncio.Queue[bytes | Exception] = asyncio.Queue()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (piece := await self.come.get()) != END:
            if isinstance(piece, Exception):
                raise piece
            yield piece


class Wire(httpx2.AsyncBaseTransport):
    """Takes requests in their order; `heads` are the headers of the answers, which are streams unless they say else."""

    def __init__(self) -> None:
        self.requests: list[httpx2.Request] = []
        self.answers: list[Incoming] = []
        self.heads: dict[int, dict[str, str]] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await request.aread()
        number = len(self.requests)
        self.requests.append(request)
        self.answers.append(Incoming())
        headers = {"content-type": "text/event-stream", **self.heads.get(number, {})}
        return httpx2.Response(200, headers=headers, stream=self.answers[number], request=request)

    def place_of(self, word: str) -> int:
        """Which request says this."""
        return next(at for at, each in enumerate(self.requests) if word in each.content.decode())

    def say(self, place: int, *pieces: bytes | Exception) -> None:
        for piece in pieces:
            self.answers[place].come.put_nowait(piece)


async def settle() -> None:
    """Everything that can happen without anybody saying more has happened."""
    for _ in range(60):
        await asyncio.sleep(0)
