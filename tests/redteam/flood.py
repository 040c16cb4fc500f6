"""A tenant that floods a server in every way it can: `python -m tests.redteam.flood URL MODEL`, until told to end.

A process of its own: whoever measures another tenant's times must not do this work. It says when it has risen, ends
when its standard input does, and says then, as JSON, what it was answered.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import httpx

from cloister.channel.envelope import CONTENT_TYPE
from tests.sealed import SealedClient

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
QUESTION = {"messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 4, "temperature": 0}
WORDS = ("river", "stone", "lantern", "orchard", "harbour", "violin", "winter", "garden")
Way = Callable[[httpx.AsyncClient], Coroutine[Any, Any, None]]


class Flood:
    """All the ways at once, each in a loop of its own."""

    def __init__(self, url: str, model: str) -> None:
        self._url, self._model = url, model
        self.answered: Counter[int | str] = Counter()
        self._risen = asyncio.Event()
        self._chance = random.Random(3)
        self._sealed = SealedClient(url, "floods")
        self._texts = {length: self._text(length) for length in (12_000, 200_000, 1_000_000)}

    async def rise(self) -> None:
        """Until standard input ends."""
        limits = httpx.Limits(max_connections=None)
        headers = {"Authorization": "Bearer floods"}
        async with httpx.AsyncClient(base_url=self._url, headers=headers, timeout=120, limits=limits) as http:
            ways: list[Way] = [
                *[self._half_open] * 4, self._heads, *[self._sealed_bodies] * 4, *[self._many_answers] * 2,
                *[self._sessions] * 8, *[self._long_prompts] * 8, *[self._leaves] * 8,
            ]  # fmt: skip
            tasks = [asyncio.create_task(self._again(way, http)) for way in ways]
            try:
                await self._risen.wait()
                print("risen", flush=True)
                await asyncio.to_thread(sys.stdin.read)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _again(self, way: Way, http: httpx.AsyncClient) -> None:
        while True:
            with suppress(httpx.HTTPError, OSError):
                await way(http)
                self._risen.set()
            await asyncio.sleep(0.05)

    async def _half_open(self, http: httpx.AsyncClient) -> None:
        place = urlsplit(self._url)
        writers = []
        for _ in range(50):
            _, writer = await asyncio.open_connection(place.hostname, place.port)
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n")
            writers.append(writer)
        await asyncio.sleep(2)
        for writer in writers:
            writer.close()
        self.answered["half open"] += 1

    async def _heads(self, http: httpx.AsyncClient) -> None:
        place = urlsplit(self._url)
        _, writer = await asyncio.open_connection(place.hostname, place.port)
        writer.write(b"GET / HTTP/1.1\r\n")
        for number in range(200):
            writer.write(b"x-%d: %b\r\n" % (number, b"y" * 4096))
            await writer.drain()
        writer.close()
        self.answered["heads"] += 1

    async def _sealed_bodies(self, http: httpx.AsyncClient) -> None:
        body = {**QUESTION, "model": self._model, "messages": [{"role": "user", "content": self._texts[200_000]}]}
        envelope, _ = self._sealed.seal("POST", CHAT, body)
        reply = await http.post("/v1/sealed", content=envelope, headers={"Content-Type": CONTENT_TYPE})
        self.answered[reply.status_code] += 1

    async def _many_answers(self, http: httpx.AsyncClient) -> None:
        await self._post(http, CHAT, {**QUESTION, "n": 16, "temperature": 1})
        await self._post(http, COMPLETIONS, {"prompt": self._texts[1_000_000], "n": 128})

    async def _sessions(self, http: httpx.AsyncClient) -> None:
        await self._post(http, CHAT, {**QUESTION, "session": f"s-{self._chance.random()}"})

    async def _long_prompts(self, http: httpx.AsyncClient) -> None:
        level = self._chance.choice(("open", "partitioned", "isolated"))
        await self._post(
            http,
            COMPLETIONS,
            {"prompt": f"{self._chance.random()} {self._texts[12_000]}", "max_tokens": 32, "protection": level},
        )

    async def _leaves(self, http: httpx.AsyncClient) -> None:
        body = {**QUESTION, "model": self._model, "stream": True, "max_tokens": 500, "ignore_eos": True}
        async with http.stream("POST", CHAT, json=body) as reply:
            async for _ in reply.aiter_lines():
                break
        self.answered["left"] += 1

    async def _post(self, http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
        reply = await http.post(path, json={"model": self._model, **body})
        self.answered[reply.status_code] += 1

    def _text(self, length: int) -> str:
        return " ".join(self._chance.choices(WORDS, k=length // 7))[:length]


if __name__ == "__main__":
    flood = Flood(*sys.argv[1:])
    asyncio.run(flood.rise())
    print(json.dumps(flood.answered))
