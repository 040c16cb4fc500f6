"""With a beat, an observer of a stream sees how many beats it took: neither the rhythm nor the sizes of its tokens."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, MutableMapping
from typing import Any

import pytest

from cloister.config import GatewaySettings
from cloister.errors import ServiceUnavailable
from cloister.gateway.answer import EVENT_BYTES, padded
from cloister.gateway.app import create_app
from cloister.messages.generation import Tokens
from cloister.messages.types import SamplingParams
from tests.backend.test_grid import StillLoop
from tests.gateway.fakes import KEY, MODEL, ByteTokenizer, FakeBackend, chat_body

BEAT = 0.25
RESPONSES = "/v1/responses"
Seen = list[tuple[float, int]]


class Rhythm(FakeBackend):
    """Each piece of text comes after its pause."""

    def __init__(self, *pieces: tuple[float, str]) -> None:
        super().__init__()
        self.pieces = pieces

    async def _stream(self, scored: tuple[int, ...] | None, params: SamplingParams) -> AsyncGenerator[Tokens, None]:
        for number, (pause, text) in enumerate(self.pieces, 1):
            await asyncio.sleep(pause)
            if text == "fail":
                raise ServiceUnavailable("gone")
            yield Tokens(1, tuple(text.encode()), finish="length" if number == len(self.pieces) else None)


def observed(beat_ms: int, *pieces: tuple[float, str], path: str = "/v1/chat/completions") -> tuple[Seen, bytes]:
    """When events left and how large they were, and all they said."""
    asked = {"model": MODEL, "input": "Hi"} if path == RESPONSES else chat_body()
    body = json.dumps({**asked, "stream": True}).encode()
    names = [(b"content-type", b"application/json"), (b"authorization", KEY["Authorization"].encode())]
    scope = {
        **{"type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "root_path": ""},
        **{"path": path, "raw_path": b"", "query_string": b"", "client": ("127.0.0.1", 5)},
        **{"headers": [*names, (b"host", b"localhost"), (b"content-length", str(len(body)).encode())]},
    }

    async def run() -> tuple[Seen, bytes]:
        app = create_app(Rhythm(*pieces), ByteTokenizer(), MODEL, GatewaySettings(beat_ms=beat_ms), 1)  # type: ignore[arg-type]
        loop, seen, said, given = asyncio.get_running_loop(), [], [], [body]
        begun = loop.time()

        async def receive() -> dict[str, Any]:
            if given:
                return {"type": "http.request", "body": given.pop(), "more_body": False}
            await asyncio.sleep(3600)
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                said.append(b"%d\n" % message["status"])
            elif message["body"]:
                seen.append((round(loop.time() - begun, 6), len(message["body"])))
                said.append(message["body"])

        await app(scope, receive, send)
        return seen, b"".join(said)

    with asyncio.Runner(loop_factory=StillLoop) as runner:
        return runner.run(run())


def words(said: bytes) -> str:
    events = [json.loads(line[6:]) for line in said.split(b"\n") if line.startswith(b"data: {")]
    return "".join(choice["delta"].get("content") or "" for event in events for choice in event.get("choices", ()))


STEADY = [(0.03, "abc ")] * 60
UNEVEN = [(0.3, "a"), (0.001, "longer words together "), (0.9, "x"), (0.5, "many " * 20), (0.095, "end ")]


def test_streams_that_take_as_many_beats_look_the_same() -> None:
    (steady, one), (uneven, other) = observed(250, *STEADY), observed(250, *UNEVEN)
    assert {size for _, size in steady + uneven} == {EVENT_BYTES}
    assert [at for at, _ in steady] == pytest.approx([BEAT * number for number in range(1, 9)])
    assert uneven == steady[1:], "the first token came in the second beat; from then on nothing differs"
    assert words(one) == "abc " * 60 and words(other) == "".join(text for _, text in UNEVEN)
    assert one.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("last", ["c", "fail"])
def test_an_end_that_says_the_text_again_shows_no_length_of_it(last: str) -> None:
    (short, one), (long, other) = (
        observed(250, (0.1, "a"), (0.5, text), (0.5, last), path=RESPONSES) for text in ("b", "a longer one " * 8)
    )
    assert short == long and len({size for _, size in short[1:-1]}) == 1, "a size says the number of beats alone"
    assert all(size % EVENT_BYTES == 0 for _, size in short) and short[-1][1] > short[0][1]
    assert b"a longer one" in other and all((b"response.failed" in said) is (last == "fail") for said in (one, other))
    assert one.endswith(b"data: [DONE]\n\n") is (last == "c")


def test_without_a_beat_rhythm_and_sizes_show() -> None:
    (steady, one), (uneven, other) = observed(0, *STEADY), observed(0, *UNEVEN)
    assert len(steady) == 60 and len(uneven) == 5 and len({size for _, size in uneven}) > 2
    assert b"\n: " not in one + other


def test_whatever_the_rhythm_events_leave_on_the_beat() -> None:
    draw = random.Random(7)
    for _ in range(20):
        pieces = [(draw.expovariate(8), "w" * draw.randint(1, 12)) for _ in range(draw.randint(1, 60))]
        seen, said = observed(250, *pieces)
        first, last = pieces[0][0], sum(pause for pause, _ in pieces)
        beats = [number * BEAT for number in range(int(first / BEAT) + 1, int(last / BEAT) + 2)]
        assert seen == [(pytest.approx(at), EVENT_BYTES) for at in beats]
        assert words(said) == "".join(text for _, text in pieces)


def test_a_failure_before_the_first_token_has_its_status_and_a_later_one_its_event() -> None:
    assert observed(250, (0.1, "fail"))[1].startswith(b"503")
    seen, said = observed(250, (0.1, "a"), (0.6, "fail"))
    assert said.startswith(b"200") and b'"error"' in said and words(said) == "a" and len(seen) == 3


@pytest.mark.parametrize("length", [0, 1, EVENT_BYTES - 4, EVENT_BYTES - 3, EVENT_BYTES, 5000])
def test_padding_is_a_comment_before_the_events(length: int) -> None:
    whole = padded(b"x" * length)
    comment, events = whole.split(b"\n\n", 1)
    assert len(whole) % EVENT_BYTES == 0 and comment.startswith(b": ") and events == b"x" * length
