"""A small fake backend and tokenizer: tokens are bytes, and the model says what it is told to.

The fake reads prompts for vaults itself, with the same code; what it is told to forget it keeps nothing of.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import struct
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import msgspec
import uvicorn
from fastapi import FastAPI

from cloister.backend.base import Backend, OpenJob, VaultJob
from cloister.backend.stream import TokenStream
from cloister.config import DEVELOPMENT_KEY
from cloister.errors import PromptTooLong
from cloister.messages.controller_frontend import Serving, View
from cloister.messages.generation import Reuse, Stats, Tokens
from cloister.messages.types import SamplingParams, TokenLogprob
from cloister.prompts.reading import PromptReading
from cloister.prompts.tokenizer import GenerationDefaults
from cloister.tools.families import Parsing
from cloister.vault.reading import read_prompt

MODEL = "fake/echo-bytes"
KEY = {"Authorization": f"Bearer {DEVELOPMENT_KEY}"}
END = 256
VOCABULARY = 257
CONTEXT = 2048
WIDTH = 4
LEVELS = ("open", "partitioned", "isolated")


class ByteStream:
    def __init__(self) -> None:
        self._held = b""

    def push(self, tokens: Sequence[int]) -> str:
        data = self._held + bytes(token for token in tokens if token < 256)
        whole = len(data)
        for back in range(1, min(4, len(data)) + 1):
            lead = data[-back]
            if lead >= 0xC0:
                needed = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
                whole = len(data) - back if needed > back else len(data)
                break
        self._held = data[whole:]
        return data[:whole].decode("utf-8", "replace")

    def finish(self) -> str:
        rest, self._held = self._held, b""
        return rest.decode("utf-8", "replace")


class ByteTokenizer:
    """Every byte is a token; 256 ends a turn."""

    vocabulary = VOCABULARY
    stop_tokens = (END,)
    special = frozenset({END})
    generation = GenerationDefaults()
    parsing = Parsing()

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token < 256).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b"<end>"

    def render_chat(self, messages: list[dict[str, Any]], words: Mapping[str, Any] | None = None) -> list[int]:
        turns = "".join(map(self._turn, messages))
        return self.encode((f"<words>{json.dumps(words)}" if words else "") + turns + "<assistant>")

    @staticmethod
    def _turn(turn: dict[str, Any]) -> str:
        more = {name: value for name, value in turn.items() if name not in ("role", "content")}
        return f"<{turn['role']}>{turn['content']}" + (json.dumps(more) if more else "")

    def render_chat_beside(
        self, messages: list[dict[str, Any]], twin: list[dict[str, Any]], words: Mapping[str, Any] | None = None
    ) -> tuple[list[int], list[int]]:
        ids, other = self.render_chat(messages, words), self.render_chat(twin)
        same = takewhile(lambda pair: pair[0] == pair[1], zip(ids, other, strict=False))
        return ids, [token for token, _ in same]

    def stream(self, visible: Mapping[int, str] | None = None) -> ByteStream:
        return ByteStream()


@dataclass(frozen=True)
class Submitted:
    """One request as the backend got it: who asked, the job itself, how, and the prompt's tokens."""

    tenant: str
    job: OpenJob | VaultJob
    params: SamplingParams
    prompt: tuple[int, ...]


class FakeStream(TokenStream):
    """A stream over a generator."""

    def __init__(self, request_id: int, prompt_tokens: int, tokens: AsyncGenerator[Tokens, None]) -> None:
        self.request_id, self.prompt_tokens, self.sequences, self._tokens = request_id, prompt_tokens, 1, tokens

    async def __anext__(self) -> Tokens:
        return await anext(self._tokens)

    async def aclose(self) -> None:
        await self._tokens.aclose()


class FakeBackend(Backend):
    """Says `answer` (or one derived from the seed, when it is sampled), `step` tokens per message."""

    def __init__(self, levels: tuple[Any, ...] = LEVELS) -> None:
        self.levels = levels
        self.levels_now = levels
        self.answer = "Hello, world! How are you?"
        self.ends = True
        self.step = 1
        self.pause: float | None = 0
        self.fails: Callable[[], Exception] | None = None
        self.fails_after: int | None = None
        self.stats_fail: Exception | None = None
        self.remembers = True
        self.submitted: list[Submitted] = []
        self.ended_sessions: list[tuple[str, str, str]] = []
        self.forgotten: list[str] = []
        self.cached: list[int] = []
        """What the next requests find, one after the other."""
        self.views: dict[int, View] = {}
        self.up = True
        self.open = 0
        self.cancelled = 0
        self._reading = PromptReading(ByteTokenizer(), VOCABULARY, CONTEXT)
        self._ids = itertools.count(1)

    @property
    def ready(self) -> Serving:
        return Serving(VOCABULARY, CONTEXT, 128, 16, "fake", WIDTH, levels=self.levels, missing_layers=("memory_lock",))

    async def generate(self, tenant: str, job: OpenJob | VaultJob, params: SamplingParams) -> FakeStream:
        prompt = job.prompt if isinstance(job, OpenJob) else self._reading.read(read_prompt(job.prompt)).tokens
        asked = params
        if isinstance(job, VaultJob):
            if len(prompt) >= CONTEXT:
                raise PromptTooLong("The prompt leaves no room for an answer.")
            params = msgspec.structs.replace(params, max_tokens=min(params.max_tokens, CONTEXT - len(prompt)))
        if self.remembers:
            self.submitted.append(Submitted(tenant, job, asked, prompt))
        await asyncio.sleep(0)
        if self.fails is not None and self.fails_after is None:
            raise self.fails()
        scores = None if params.prompt_logprobs is None else tuple(prompt[1:])
        stream = self._embedded(len(prompt)) if params.embed else self._stream(scores, params)
        return FakeStream(next(self._ids), len(prompt), stream)

    async def _embedded(self, length: int) -> AsyncGenerator[Tokens, None]:
        self.open += 1
        ended = False
        try:
            await asyncio.sleep(10 * (self.pause or 0))
            ended = True
            yield Tokens(1, finish="length", vector=vector_of(length))
        finally:
            self.open -= 1
            self.cancelled += not ended

    async def _stream(self, scored: tuple[int, ...] | None, params: SamplingParams) -> AsyncGenerator[Tokens, None]:
        self.open += 1
        ended = False
        try:
            text = self.answer if params.temperature == 0 else f"{(params.seed or 0) % 100_000_000:08d} {self.answer}"
            said = [*text.encode(), END]
            limit = params.max_tokens
            ends = self.ends and bool(params.stop_tokens)
            whole = said[:limit] if ends else ([*said[:-1]] * (limit // max(1, len(said) - 1) + 1))[:limit]
            finish = "stop" if ends and len(said) <= limit else "length"
            if scored is not None:
                yield Tokens(1, prompt_logprobs=tuple(self._score(t, params.prompt_logprobs or 0) for t in scored))
            cached = self.cached.pop(0) if self.cached else 0
            for start in range(0, len(whole), self.step):
                if self.pause is not None:
                    await asyncio.sleep(self.pause)
                if self.fails is not None and self.fails_after is not None and start >= self.fails_after:
                    raise self.fails()
                part = tuple(whole[start : start + self.step])
                scores = None if params.logprobs is None else tuple(self._score(t, params.logprobs) for t in part)
                last = start + self.step >= len(whole)
                ended = ended or last
                yield Tokens(1, part, scores, finish=finish if last else None, cached=0 if start else cached)
            if not whole:
                ended = True
                yield Tokens(1, finish="length")
        finally:
            self.open -= 1
            self.cancelled += not ended

    def _score(self, token: int, top: int) -> TokenLogprob:
        best = tuple(((token + other) % VOCABULARY, -0.5 - other) for other in range(top))
        return TokenLogprob(-0.5 - token / 1000, best)

    async def stats(self) -> Stats:
        if self.stats_fail is not None:
            raise self.stats_fail
        return Stats(
            running=self.open, waiting=3, blocks_total=128, blocks_free=100, vaults=2, up=self.up,
            levels=self.levels_now, reuse={"counted": Reuse(120, 30, 4321)},
            evictions=250,
        )  # fmt: skip

    async def view(self, request_id: int) -> View:
        return self.views.get(request_id, View(request_id, known=False))

    async def end_session(self, tenant: str, session: str, group: str = "", *, private: bool = False) -> None:
        self.ended_sessions.append((tenant, session, group))
        if private:
            self.forgotten.append(tenant)

    async def close(self) -> None:
        pass


def vector_of(length: int) -> bytes:
    """The embedding of a prompt with this many tokens."""
    return struct.pack(f"<{WIDTH}f", 0.5, -0.5, *(part(length) / 2**0.5 for part in (math.sin, math.cos)))


def chat_body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "temperature": 0, **fields}


def completion_body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "Once", "temperature": 0, "max_tokens": 100, **fields}


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """The app under uvicorn in a thread, on a port of its own; gives the URL."""
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, http="httptools", loop="uvloop", ws="none", log_config=None, access_log=False)
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            threading.Event().wait(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
