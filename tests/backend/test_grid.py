"""First tokens on a grid: a hit and a miss leave at the same points, and nothing after them tells which it was."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cloister.backend.stream import Event, Grid, Mailbox
from cloister.messages.generation import Failed, Tokens

STEP = 0.2
HIT, MISS = 0.021, 0.183


class StillLoop(asyncio.SelectorEventLoop):
    """A loop whose time is moved on only when all that is left to do is to wait."""

    now = 1000.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        if not ready and scheduled:
            self.now = max(self.now, scheduled[0].when())
        super()._run_once()  # type: ignore[misc]


def played(play: Callable[[], Awaitable[list[tuple[float, Event]]]]) -> list[tuple[float, Event]]:
    async def run() -> list[tuple[float, Event]]:
        return await play()

    with asyncio.Runner(loop_factory=StillLoop) as runner:
        return runner.run(run())


def answer(first_s: float, beat_s: float = 0.0, *, cached: int = 0) -> list[tuple[float, Event]]:
    """An answer of five tokens, the first after so long, the others 30 ms apart: what is read of it, and when."""

    async def play() -> list[tuple[float, Event]]:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        box = Mailbox(beat_s, Grid(STEP, begun))
        for number in range(5):
            made = Tokens(1, (number,), finish="length" if number == 4 else None)
            if not number:
                made = Tokens(1, (0,), cached=cached, shared=cached)
            loop.call_at(begun + first_s + 0.03 * number, box.put, made)
        read: list[tuple[float, Event]] = []
        while not read or not isinstance(event := read[-1][1], Tokens) or event.finish is None:
            event = await box.take()
            read.append((round(loop.time() - begun, 6), event))
        return read

    return played(play)


def test_a_hit_and_a_miss_are_read_alike_from_the_first_token_to_the_last() -> None:
    hit, miss = answer(HIT, cached=96), answer(MISS)
    assert hit == miss
    assert [at for at, _ in hit] == pytest.approx([0.2, 0.23, 0.26, 0.29, 0.32]), "its own pace after the grid's point"


def test_on_a_beat_too() -> None:
    assert answer(HIT, beat_s=0.15, cached=96) == answer(MISS, beat_s=0.15)


def test_what_takes_longer_than_a_step_leaves_with_the_next() -> None:
    assert answer(0.201)[0][0] == pytest.approx(0.4) and answer(0.399)[0][0] == pytest.approx(0.4)


def test_a_failure_waits_like_a_token() -> None:
    async def play() -> list[tuple[float, Event]]:
        loop = asyncio.get_running_loop()
        box = Mailbox(grid=Grid(STEP, loop.time()))
        begun = loop.time()
        loop.call_later(HIT, box.put, Failed(1, "x", "y"))
        return [(loop.time() - begun, await box.take()), (loop.time() - begun, Failed(1, "", ""))]

    assert played(play)[1][0] == pytest.approx(STEP)


@example([0.15686726091945952, 0.15686726091945952], 0.9821039350023285)
@given(st.lists(st.floats(0, 3), min_size=1, max_size=20), st.floats(0.01, 1))
def test_nothing_leaves_early_or_out_of_order(times: list[float], step: float) -> None:
    grid = Grid(step, 0.0)
    times.sort()
    leaves = [grid.leaves(at) for at in times]
    assert leaves == sorted(leaves) and all(left >= at - 1e-9 for left, at in zip(leaves, times, strict=True))
    assert leaves[0] / step == pytest.approx(round(leaves[0] / step))
    assert leaves[0] - times[0] < step + 1e-9
