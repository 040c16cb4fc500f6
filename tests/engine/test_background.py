"""What is computed in the background: only while nobody else is here, and never in a step of others."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from cloister.engine.base import EngineRequest
from cloister.engine.paged import PagedEngine
from cloister.engine.tenants import MAX_WAITING
from cloister.messages.generation import Accepted, Failed, Tokens
from tests.engine.fake_runner import FakeRunner
from tests.engine.node import alone, answers_to, make_engine, request

LONG = list(range(30))


def background(number: int, prompt: list[int] = LONG) -> EngineRequest:
    return replace(request(number, prompt, max_tokens=1, temperature=0), background=True)


def drain(engine: PagedEngine) -> list[Tokens | Failed]:
    """All that is said until there is no work."""
    messages = []
    while engine.has_work:
        messages += engine.step()
    return messages


class Seen(FakeRunner):
    """Remembers the lengths of each step's chunks."""

    def __init__(self) -> None:
        super().__init__(num_blocks=100)
        self.steps: list[list[int]] = []

    def forward(self, chunks):
        self.steps.append([len(chunk.tokens) for chunk in chunks])
        return super().forward(chunks)


@pytest.fixture
def runner() -> Seen:
    return Seen()


@pytest.fixture
def engine(runner: Seen) -> PagedEngine:
    return make_engine(runner, chunk_tokens=8)


def test_alone_it_is_answered_as_any_other(engine):
    assert engine.submit(background(1)) == Accepted(1) and engine.has_work
    assert answers_to(engine, [])[1] == alone(request(1, LONG, max_tokens=1, temperature=0))
    assert not engine.has_work


def test_nobody_shares_a_step_with_it_and_what_ran_begins_anew(engine, runner):
    engine.submit(background(1))
    engine.step()  # a part of its prompt
    ordinary = request(2, [3, 1, 4], max_tokens=5, temperature=0)
    engine.submit(ordinary)
    runner.steps.clear()
    messages = []
    while not any(message.finish for message in messages):
        messages += engine.step()
    assert {message.request_id for message in messages} == {2}
    assert runner.steps == [[3], [1], [1], [1], [1]], "each step was the ordinary request's alone, from the first on"
    late = drain(engine)
    assert [message.request_id for message in late] == [1]
    assert late[0].tokens == tuple(alone(request(1, LONG, max_tokens=1, temperature=0)).tokens)
    assert engine.stats().blocks_free == engine.stats().blocks_total


def test_while_there_is_company_it_waits(engine):
    engine.submit(request(2, [3, 1, 4], max_tokens=6))
    engine.submit(background(1, [5]))
    order = [message.request_id for message in drain(engine)]
    assert order == [2] * 6 + [1]


@pytest.mark.parametrize("steps", [0, 1])
def test_it_can_be_cancelled_waiting_or_running(engine, steps):
    engine.submit(background(1))
    for _ in range(steps):
        engine.step()
    assert engine.cancel(1) is not None and engine.cancel(1) is None
    assert not engine.has_work and engine.stats().blocks_free == engine.stats().blocks_total
    assert engine.submit(background(1)) == Accepted(1) and len(drain(engine)) == 1


def test_few_wait_and_none_twice(engine):
    for number in range(MAX_WAITING):
        assert isinstance(engine.submit(background(number)), Accepted)
    assert isinstance(engine.submit(background(0)), Failed)
    refused = engine.submit(background(99))
    assert isinstance(refused, Failed) and refused.code == "queue_full"
    assert isinstance(engine.submit(request(5, [1])), Accepted), "others are not refused for it"
