"""What a lower tier brings while requests are served: late or in time, the answer is the same and nobody waits."""

from __future__ import annotations

import random

import numpy as np
import pytest

from cloister.engine.paged import PagedEngine
from cloister.engine.reuse import MAX_LOOKUPS
from cloister.messages.generation import Reuse
from cloister.prefix.base import Found, PrefixKey
from cloister.prefix.host import HostTier
from cloister.prefix.radix import RadixCache
from cloister.prefix.tier import State
from tests.engine.fake_runner import FakeRunner
from tests.engine.node import Answer, alone, answers_to, drain, make_engine, request

PROMPT = [*range(30), 5]
"""Seven full blocks of four, and three tokens."""


class Blocks:
    """The fake runner's cache as storage."""

    def __init__(self, runner: FakeRunner) -> None:
        self._runner = runner
        self.block_bytes = 2 * 8 * runner.block_tokens

    def read(self, block: int) -> bytes:
        return b"".join(cells[self._of(block)].tobytes() for cells in (self._runner.tokens, self._runner.rotations))

    def write(self, block: int, data: bytes) -> None:
        for at, cells in enumerate((self._runner.tokens, self._runner.rotations)):
            cells[self._of(block)] = np.frombuffer(data, dtype=cells.dtype).reshape(2, -1)[at]

    def _of(self, block: int) -> slice:
        return slice(block * self._runner.block_tokens, (block + 1) * self._runner.block_tokens)


class LateTier(HostTier):
    """What is fetched comes when `arrived` says so; `settle` waits for nothing, and is counted."""

    def __init__(self, block_bytes: int) -> None:
        super().__init__(100 * block_bytes, block_bytes)
        self.arrived = False
        self.asked: set[int] = set()
        self.waits = 0

    def fetch(self, number: int, bound: bytes) -> State:
        self.asked.add(number)
        state = super().fetch(number, bound)
        return State.COMING if state is State.HERE and not self.arrived else state

    def settle(self, seconds: float) -> bool:
        self.waits += 1
        return self.arrived


class Tiered:
    def __init__(self, num_blocks: int = 64, chunk_tokens: int = 8) -> None:
        self.runner = FakeRunner(num_blocks=num_blocks)
        blocks = Blocks(self.runner)
        self.tier = LateTier(blocks.block_bytes)
        self.cache = RadixCache(self.tier, storage=blocks)
        self.engine: PagedEngine = make_engine(self.runner, self.cache, chunk_tokens=chunk_tokens)

    def offload(self, prompt: list[int], tenant: str = "a") -> None:
        """Serve it once; then it is in the tier alone."""
        answers_to(self.engine, [request(0, prompt, tenant)])
        self.cache.evict(self.runner.num_blocks)
        assert self.engine._pool.free == self.runner.num_blocks


def test_what_comes_late_is_taken_where_the_prefill_is_then() -> None:
    tiered, again = Tiered(), request(1, PROMPT)
    tiered.offload(PROMPT)
    before = tiered.runner.computed_tokens
    tiered.engine.submit(again)
    answers: dict[int, Answer] = {}
    for message in tiered.engine.step():
        answers.setdefault(1, Answer()).take(message)
    assert tiered.runner.computed_tokens - before == 8, "nothing had come: a chunk is computed"
    tiered.tier.arrived = True
    drain(tiered.engine, answers)
    assert answers[1] == alone(again) and answers[1].cached == 28 - 8
    assert tiered.runner.computed_tokens - before == 8 + 3 + 7 + 8, (
        "five blocks found, seven tokens decoded, two pages kept"
    )
    assert tiered.engine._pool.free == 64 - tiered.cache.pages
    assert tiered.engine.stats().reuse["partition"] == Reuse(hits=1, misses=1, tokens=20)


def test_what_never_comes_is_computed() -> None:
    tiered, again = Tiered(), request(1, PROMPT)
    tiered.offload(PROMPT)
    answer = answers_to(tiered.engine, [again])[1]
    assert answer == alone(again) and answer.cached == 0
    assert not len(tiered.tier._slots), "computed again, the tier's copy is discarded"
    tiered.cache.evict(64)
    assert tiered.engine._pool.free == 64, "what was looked at in vain is held by nobody"


def test_what_does_not_come_is_looked_for_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A monitor counts every look."""
    tiered, looks = Tiered(chunk_tokens=2), 0
    tiered.offload(PROMPT)
    lookup = tiered.cache.lookup

    def counted(key: PrefixKey, most: int) -> Found:
        nonlocal looks
        looks += 1
        return lookup(key, most)

    monkeypatch.setattr(tiered.cache, "lookup", counted)
    answers_to(tiered.engine, [request(1, PROMPT)])
    assert looks == 2 + MAX_LOOKUPS, "it is alone, so it looks twice when it begins"


def test_one_who_is_alone_waits_and_nobody_else_does() -> None:
    tiered = Tiered()
    tiered.offload(PROMPT)
    tiered.engine.submit(request(1, PROMPT))
    tiered.engine.step()
    assert tiered.tier.waits == 1
    drain(tiered.engine)
    tiered.cache.evict(64)
    tiered.engine.submit(request(2, [7] * 20, "b"))
    tiered.engine.step()
    tiered.engine.submit(request(3, PROMPT))
    drain(tiered.engine)
    assert tiered.tier.waits == 1, "b was being served"


def test_what_has_to_wait_is_brought_meanwhile() -> None:
    tiered = Tiered()
    tiered.offload(PROMPT)
    tiered.engine.submit(request(1, PROMPT))
    assert len(tiered.tier.asked) == 7, "before any step"
    tiered.engine.submit(request(2, PROMPT, "b"))
    assert len(tiered.tier.asked) == 7, "another tenant's request brings nothing"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whatever_comes_when_the_answers_are_the_same(seed: int) -> None:
    """In a pool so small that blocks go down and come back all the time."""
    chance = random.Random(seed)
    tiered = Tiered(num_blocks=30)
    stems = [[chance.randrange(32) for _ in range(17)] for _ in range(3)]
    requests = [
        request(i, [*stems[i % 3], *(chance.randrange(32) for _ in range(i % 5 + 1))], "ab"[i % 2], seed=i)
        for i in range(40)
    ]
    answers: dict[int, Answer] = {}
    for start in range(0, 40, 5):
        for submit in requests[start : start + 5]:
            tiered.engine.submit(submit)
        while tiered.engine.has_work:
            tiered.tier.arrived = chance.random() < 0.5
            for message in tiered.engine.step():
                answers.setdefault(message.request_id, Answer()).take(message)
    assert answers == {submit.request_id: alone(submit) for submit in requests}
    assert tiered.cache.counts.recalls and tiered.engine._pool.free == 30 - tiered.cache.pages
