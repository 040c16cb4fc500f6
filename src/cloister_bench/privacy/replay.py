"""What an observer of the network sees of a recorded answer: sizes and moments of what leaves, in the clear or sealed,
at once or on a beat. The node's own code, on a clock that does not wait."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from starlette.types import Message

from cloister.backend.base import Backend, OpenJob
from cloister.backend.stream import Mailbox, TokenStream
from cloister.channel import bhttp
from cloister.channel.ohttp.chunks import ChunkSealer
from cloister.channel.ohttp.encapsulation import NONCE_BYTES, Chain
from cloister.channel.ohttp.keys import SUITES
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
    """`waits_s`: the beat of a sealed API's mailbox; `beat_s`: that of `serve --beat`. `relayed`: in Oblivious HTTP."""

    sealed: bool = False
    relayed: bool = False
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


def traffic_of(recorded: Recorded, way: Way) -> Traffic:
    with asyncio.Runner(loop_factory=StillLoop) as runner:
        return runner.run(_play(recorded, way))


async def _play(recorded: Recorded, way: Way) -> Traffic:
    loop, seen, heads = asyncio.get_running_loop(), Traffic(), 0
    sealer = StreamSealer(bytearray(32), bytes(32)) if way.sealed else None
    chunks = ChunkSealer(Chain(SUITES[0].aead, bytes(16), bytes(NONCE_BYTES)), b"") if way.relayed else None
    box = Mailbox(way.waits_s)
    for number, (at, _) in enumerate(recorded, 1):
        loop.call_at(at, box.put, Tokens(1, (number - 1,), finish="stop" if number == len(recorded) else None))

    async def generate_all(*_: object) -> list[TokenStream]:
        return [TokenStream(1, 1, box, lambda: None)]

    async def receive() -> Message:
        await asyncio.sleep(FOREVER_S)
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal heads
        if message["type"] == "http.response.start":
            heads = 0 if sealer is None else len(sealer.head(b""))
            return
        size, more = len(message["body"]), message.get("more_body", False)
        if sealer is not None:
            size, heads = heads + len(sealer.data(message["body"])) + (0 if more else len(sealer.end())), 0
        if chunks is not None:
            content = bhttp.chunk(bytes(size))
            size = len(chunks.seal(content) if more else chunks.end(content + bhttp.end()))
        seen.append((round(loop.time(), 6), size))  # floats' last digits would tell when a token came

    # A token is the number of a piece of text; of a backend one call is asked for.
    words: Any = SimpleNamespace(push=lambda tokens: "".join(recorded[one][1] for one in tokens), finish=lambda: "")
    words.stream, backend = lambda visible=None: words, cast(Backend, SimpleNamespace(generate_all=generate_all))
    choice = Choice(0, SamplingParams(max_tokens=len(recorded)), words, StopStrings([]))
    watched = WatchedAnswer("answer", "tenant", "open")
    generation = Generation(backend, watched, [choice], [OpenJob((0,))], WatchedAnswers(), Metrics())
    reply = ChatReply("model", 0, words, include_usage=False)
    await StreamedAnswer(generation, reply, FOREVER_S, {}, way.beat_s)({"type": "http"}, receive, send)
    return seen
