"""What an observer of the network sees of a recorded answer: sizes and moments of what leaves, in the clear or sealed,
at once or on a beat. The node's own code, on a clock that does not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from starlette.types import Message

from cloister.backend.base import Backend, Job, OpenJob
from cloister.backend.stream import Mailbox, TokenStream
from cloister.channel.stream import StreamSealer
from cloister.gateway.answer import ChatReply, StreamedAnswer
from cloister.gateway.choice import Choice, StopStrings
from cloister.gateway.generation import Generation, WatchedAnswer, WatchedAnswers
from cloister.gateway.metrics import Metrics
from cloister.messages.generation import Tokens
from cloister.messages.types import SamplingParams

Recorded = Sequence[tuple[float, str]]  # seconds after the request, and the text that came
Traffic = list[tuple[float, int]]  # seconds after the request, and bytes
FOREVER_S = 1e9


@dataclass(frozen=True, slots=True)
class Way:
    """`waits_s`: the beat of a sealed API's mailbox; `beat_s`: that of `serve --beat`."""

    sealed: bool = False
    waits_s: float = 0.0
    beat_s: float = 0.0


class StillLoop(asyncio.SelectorEventLoop):
    """Its time moves on only when all that is left to do is to wait."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        if not ready and scheduled:
            self.now = max(self.now, scheduled[0].when())
        super()._run_once()  # type: ignore[misc]


class _Pieces:
    """A tokenizer whose tokens are the numbers of an answer's pieces."""

    def __init__(self, recorded: Recorded) -> None:
        self._texts = [text for _, text in recorded]

    def stream(self) -> _Pieces:
        return self

    def push(self, tokens: Sequence[int]) -> str:
        return "".join(self._texts[token] for token in tokens)

    def finish(self) -> str:
        return ""


class _Replayed:
    """The part of a Backend that one answer asks for."""

    def __init__(self, recorded: Recorded, waits_s: float) -> None:
        self._recorded, self._waits_s = recorded, waits_s

    async def generate_all(self, tenant: str, job: Job, params: Sequence[SamplingParams]) -> list[TokenStream]:
        loop, box = asyncio.get_running_loop(), Mailbox(self._waits_s)
        for number, (at, _) in enumerate(self._recorded):
            last = number == len(self._recorded) - 1
            loop.call_at(at, box.put, Tokens(1, (number,), finish="stop" if last else None))
        return [TokenStream(1, 1, box, lambda: None)]


def traffic_of(recorded: Recorded, way: Way) -> Traffic:
    with asyncio.Runner(loop_factory=StillLoop) as runner:
        return runner.run(_play(recorded, way))


async def _play(recorded: Recorded, way: Way) -> Traffic:
    loop, seen = asyncio.get_running_loop(), Traffic()
    sealer = StreamSealer(bytearray(32), bytes(32)) if way.sealed else None
    words: Any = _Pieces(recorded)
    choice = Choice(0, SamplingParams(max_tokens=len(recorded)), words, StopStrings([]))
    backend = cast(Backend, _Replayed(recorded, way.waits_s))
    watched = WatchedAnswer("answer", "tenant", "open")
    generation = Generation(backend, watched, [choice], [OpenJob((0,))], WatchedAnswers(), Metrics())
    reply = ChatReply("model", 0, words, include_usage=False)
    heads = 0

    async def receive() -> Message:
        await asyncio.sleep(FOREVER_S)
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal heads
        if message["type"] == "http.response.start":
            heads = 0 if sealer is None else len(sealer.head(b""))
            return
        body: bytes = message.get("body", b"")
        more, size = message.get("more_body", False), len(body)
        if sealer is not None:
            size = heads + len(sealer.data(body)) + (0 if more else len(sealer.end()))
            heads = 0
        seen.append((round(loop.time(), 6), size))  # floats' last digits would tell when a token came

    await StreamedAnswer(generation, reply, FOREVER_S, {}, way.beat_s)({"type": "http"}, receive, send)
    return seen
