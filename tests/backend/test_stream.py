"""Events wait for the beat, all but the first and the last; what waits together is read as one."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.backend.client import ControllerClient
from cloister.backend.stream import Event, Mailbox
from cloister.errors import ServiceUnavailable
from cloister.gateway.process import GatewayClient
from cloister.messages.generation import Failed, Progress, Tokens
from cloister.messages.types import TokenLogprob
from cloister.sealed_api.process import SealedApiClient

FAR = 3600.0
"""No beat of this length comes during a test."""


def tokens(*numbers: int, finish: str | None = None) -> Tokens:
    return Tokens(1, numbers, finish=finish)  # type: ignore[arg-type]


async def took(box: Mailbox) -> Event | None:
    """What can be read now; None if one would have to wait."""
    try:
        async with asyncio.timeout(0.05):
            return await box.take()
    except TimeoutError:
        return None


async def test_without_a_beat_everything_is_read_at_once() -> None:
    box = Mailbox()
    for number in (1, 2):
        box.put(tokens(number))
        assert await took(box) == tokens(number)
    assert await took(box) is None


@pytest.mark.parametrize("last", [tokens(9, finish="stop"), Failed(1, "x", "y"), ServiceUnavailable("gone")])
async def test_with_a_beat_the_first_and_the_last_are_read_at_once(last: Event) -> None:
    box = Mailbox(FAR)
    box.put(tokens(1))
    assert await took(box) == tokens(1)
    box.put(tokens(2))
    box.put(tokens(3))
    assert await took(box) is None, "it waits for the beat"
    reading = asyncio.create_task(box.take())
    await asyncio.sleep(0)
    box.put(last)
    if isinstance(last, Tokens):
        assert await asyncio.wait_for(reading, 5) == tokens(2, 3, 9, finish="stop")
    else:
        assert await asyncio.wait_for(reading, 5) == tokens(2, 3) and await took(box) is last
    assert await took(box) is None


async def test_beats_are_the_same_for_all() -> None:
    loop = asyncio.get_running_loop()
    beat = 0.5  # putting takes milliseconds, but machines are busy
    boxes = [Mailbox(beat) for _ in range(3)]
    for box in boxes:
        box.put(tokens(0))
        await box.take()

    async def read(box: Mailbox) -> float:
        assert await box.take() == tokens(1, 2)
        return loop.time()

    readers = [asyncio.create_task(read(box)) for box in boxes]
    await asyncio.sleep(beat - loop.time() % beat + 0.005)  # just after a beat
    for number in (1, 2):
        for box in boxes:
            box.put(tokens(number))
            await asyncio.sleep(0.001)
    ticks = {int(at / beat) for at in await asyncio.gather(*readers)}
    assert len(ticks) == 1


def test_the_sealed_apis_answers_have_a_beat_and_no_others() -> None:
    assert SealedApiClient.beat_s > 0 and GatewayClient.beat_s == ControllerClient.beat_s == 0


async def test_a_reader_that_is_cancelled_loses_nothing() -> None:
    box = Mailbox()
    assert await took(box) is None
    box.put(tokens(1))
    assert await took(box) == tokens(1)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=1, max_size=8))
def test_nothing_is_lost_or_moved(parts: list[tuple[bool, int]]) -> None:
    """Whatever is read together, tokens and their scores come in order."""
    said = []
    for at, (scored, count) in enumerate(parts):
        numbers = tuple(range(100 * at, 100 * at + count))
        scores = tuple(TokenLogprob(-float(n), ()) for n in numbers) if scored else None
        found = {"cached": 7, "shared": 3} if not at else {}
        said.append(Tokens(1, numbers, logprobs=scores, progress=Progress(at, 9, 1.0) if at % 2 else None, **found))

    async def read() -> Event:
        box = Mailbox()
        for part in said:
            box.put(part)
        return await box.take()

    read_as_one = asyncio.run(read())
    assert isinstance(read_as_one, Tokens)
    assert read_as_one.tokens == tuple(token for part in said for token in part.tokens)
    assert (read_as_one.cached, read_as_one.shared) == (7, 3)
    scores = [score for part in said for score in part.logprobs or ()]
    assert list(read_as_one.logprobs or ()) == scores
    newest = [part.progress for part in said if part.progress]
    assert read_as_one.progress == (newest[-1] if newest else None)


async def test_a_beat_that_finds_nothing_to_read_wakes_nobody() -> None:
    """What came after one beat may be read with what that beat brought, before the next: a reader on a busy machine."""
    box = Mailbox(beat := 0.01)
    box.put(tokens(1))
    await box.take()
    box.put(tokens(2))
    await asyncio.sleep(3 * beat)  # past a beat that nobody reads at
    box.put(tokens(3))
    assert await box.take() == tokens(2, 3)
    reader = asyncio.create_task(box.take())
    await asyncio.sleep(3 * beat)  # past the beat of what was read already
    box.put(last := tokens(4, finish="stop"))
    assert await reader == last
