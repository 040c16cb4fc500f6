"""The supervisor against every course that a process's lives may take, in virtual time: an event loop that would wait
for ever fails the test instead."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import ServiceUnavailable
from cloister.process.supervisor import BACK_OFF_S, GOOD_LIFE_S, Supervisor


class Hang(AssertionError):
    """The loop has nothing left to do."""


class VirtualTime(selectors.SelectSelector):
    """Waiting takes no time: the clock jumps to the next timer."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Hang
        self.now += max(timeout, 0.0)
        return []


def in_virtual_time(work: Callable[[], Awaitable[Any]]) -> Any:
    selector = VirtualTime()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    try:
        return loop.run_until_complete(work())
    finally:
        loop.close()


@dataclass(frozen=True)
class Life:
    """How long a start takes and how it goes, and how long the process lives then."""

    start_s: float = 0.0
    fails: str = ""
    """"refuses", "breaks" (an error that is not ours), or "" if it starts."""
    lives_s: float = 0.0
    dies_while_starting: bool = False


@dataclass
class Process:
    """Plays a process with these lives in a row, then the last one again and again."""

    lives: list[Life]
    supervisor: Supervisor = field(init=False)
    alive: bool = False
    busy: bool = False
    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    """When a start failed or a life ended."""

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.now = loop.time
        self.supervisor = Supervisor("process", self.start, self.clean_up, loop.time)

    @contextmanager
    def alone(self) -> Iterator[None]:
        assert not self.busy, "a start or a clean-up overlapped with another"
        self.busy = True
        try:
            yield
        finally:
            self.busy = False

    async def start(self) -> None:
        with self.alone():
            assert not self.alive, "started twice"
            life = self.lives[min(len(self.starts), len(self.lives) - 1)]
            self.starts.append(self.now())
            await asyncio.sleep(life.start_s)
            if life.fails:
                self.ends.append(self.now())
                raise ServiceUnavailable("No.") if life.fails == "refuses" else RuntimeError("secret")
            self.alive = True
            if life.dies_while_starting:
                self.die()
            else:
                asyncio.get_running_loop().call_later(life.lives_s, self.die)

    def die(self) -> None:
        if self.alive:
            self.alive = False
            self.ends.append(self.now())
            self.supervisor.ended()
            self.supervisor.ended()

    async def clean_up(self) -> None:
        with self.alone():
            assert not self.alive
            await asyncio.sleep(0.01)


LIVES = st.builds(
    Life,
    start_s=st.sampled_from([0.0, 0.3, 7.0]),
    fails=st.sampled_from(["", "", "refuses", "breaks"]),
    lives_s=st.sampled_from([0.0, 0.1, GOOD_LIFE_S - 0.1, GOOD_LIFE_S + 0.1]),
    dies_while_starting=st.booleans(),
)


@given(st.lists(LIVES, min_size=1, max_size=6), st.floats(0, 60, allow_nan=False), st.booleans())
def test_whatever_its_lives_are_it_is_started_again_once_after_its_pause(
    lives: list[Life], close_at: float, started_first: bool
) -> None:
    async def watch() -> Process:
        process = Process(lives)
        if started_first:
            try:
                await process.supervisor.start()
            except (ServiceUnavailable, RuntimeError):
                return process
        process.supervisor.keep()
        process.supervisor.keep()
        await asyncio.sleep(close_at)
        await process.supervisor.close()
        process.supervisor.keep()
        before = len(process.starts)
        await asyncio.sleep(60)
        assert len(process.starts) == before, "started after close"
        return process

    process = in_virtual_time(watch)
    attempt = 0
    for number, ((begun, again), ended) in enumerate(zip(pairwise(process.starts), process.ends, strict=False)):
        life = lives[min(number, len(lives) - 1)]
        good = not life.fails and ended - begun - life.start_s >= GOOD_LIFE_S
        attempt = 0 if good else attempt
        assert again - ended == pytest.approx(0.01 + BACK_OFF_S[min(attempt, len(BACK_OFF_S) - 1)])
        attempt += 1


@pytest.mark.parametrize("life", [Life(start_s=100.0), Life(), Life(lives_s=100.0), Life(fails="refuses")])
def test_it_can_be_closed_at_any_stage(life: Life) -> None:
    async def work() -> None:
        process = Process([life])
        process.supervisor.keep()
        await asyncio.sleep(20)
        async with asyncio.timeout(0.1):
            await process.supervisor.close()
            await process.supervisor.close()

    in_virtual_time(work)


def test_the_first_start_tells_its_owner_why_it_failed_and_cleans_up() -> None:
    async def work() -> None:
        process = Process([Life(fails="refuses"), Life(lives_s=100.0)])
        with pytest.raises(ServiceUnavailable):
            await process.supervisor.start()
        await process.supervisor.start()
        assert process.alive and process.supervisor.restarts == 0

    in_virtual_time(work)


def test_an_error_of_a_librarys_is_logged_without_its_words(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        process = Process([Life(fails="breaks")])
        process.supervisor.keep()
        await asyncio.sleep(1)
        await process.supervisor.close()

    in_virtual_time(work)
    assert "RuntimeError" in caplog.text and "secret" not in caplog.text


def test_the_loop_would_notice_a_hang() -> None:
    async def work() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Hang):
        in_virtual_time(work)


def test_closed_before_it_was_kept_it_starts_nothing() -> None:
    async def work() -> None:
        process = Process([Life()])
        await process.supervisor.close()
        process.supervisor.keep()
        await asyncio.sleep(20)
        assert not process.starts

    in_virtual_time(work)
