"""Guesses ahead change how many steps an answer takes, and no bit of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.config import EngineSettings
from cloister.engine.drafts import propose
from cloister.engine.paged import PagedEngine
from cloister.engine.scheduler import Work
from cloister.messages.generation import Tokens
from tests.engine.fake_runner import FakeRunner
from tests.engine.node import Answer, SetPace, drain, request

FEW = 3  # tokens in the vocabulary: what came before often comes again
WAYS: list[dict[str, object]] = [
    {"temperature": 0.0},
    {"temperature": 0.8, "seed": 5, "logprobs": 2},
    {"temperature": 1.0, "seed": 6, "top_k": 2, "stop_tokens": (1,), "min_tokens": 0},
    {"temperature": 0.7, "seed": 7, "top_p": 0.9, "min_p": 0.1},
]


def engine_of(drafts: int, runner: FakeRunner, **settings: int) -> PagedEngine:
    made = EngineSettings(**settings)  # type: ignore[arg-type]
    pace = SetPace(made.chunk_tokens, made.chunk_tokens)
    return PagedEngine(runner, made, pace=pace, drafts=drafts)


def answered(drafts: int, runner: FakeRunner, prompt: list[int], **params: object) -> tuple[Answer, int]:
    engine = engine_of(drafts, runner)
    engine.submit(request(1, prompt, **params))
    answers = drain(engine)
    assert engine.stats().blocks_free == engine.stats().blocks_total
    return answers[1], engine.stats().steps


@given(
    prompt=st.lists(st.integers(0, FEW - 1), min_size=1, max_size=30),
    way=st.sampled_from(WAYS),
    drafts=st.integers(1, 8),
    most=st.integers(1, 60),
)
def test_an_answer_is_the_same_with_any_number_of_guesses(
    prompt: list[int], way: dict[str, object], drafts: int, most: int
) -> None:
    plain, slow = answered(0, FakeRunner(vocabulary=FEW), prompt, max_tokens=most, **way)
    guessed, fast = answered(drafts, FakeRunner(vocabulary=FEW), prompt, max_tokens=most, **way)
    assert guessed == plain and fast <= slow


def test_guesses_that_come_true_save_steps_and_others_are_computed_again() -> None:
    runners = FakeRunner(vocabulary=FEW), FakeRunner(vocabulary=FEW)
    (plain, slow), (guessed, fast) = (
        answered(drafts, runner, [0, 1, 2, 0, 1], max_tokens=200, temperature=0.0)
        for drafts, runner in zip((0, 3), runners, strict=True)
    )
    assert guessed == plain and slow == len(plain.tokens) == 200
    assert fast < 0.9 * slow
    assert runners[1].computed_tokens > runners[0].computed_tokens, "no guess was wrong: nothing was tried"


def test_guesses_that_are_believed_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = answered(0, FakeRunner(vocabulary=FEW), [0, 1, 2, 0, 1], max_tokens=60, temperature=0.0)
    checked = PagedEngine._take_drafted

    def believed(engine: PagedEngine, work: Work, chosen: list[tuple[int, None]]) -> list[Tokens]:
        return checked(engine, work, [*((guess, None) for guess in work.drafts), chosen[-1]])

    monkeypatch.setattr(PagedEngine, "_take_drafted", believed)
    broken, _ = answered(3, FakeRunner(vocabulary=FEW), [0, 1, 2, 0, 1], max_tokens=60, temperature=0.0)
    assert broken != plain


@pytest.mark.parametrize(
    "params", [{"presence_penalty": 0.5}, {"logit_bias": {0: 1.0}}, {"repetition_penalty": 1.2}, {"min_tokens": 3}]
)
def test_what_depends_on_the_tokens_before_is_not_guessed(params: dict[str, object]) -> None:
    runner = FakeRunner(vocabulary=FEW)
    answered(8, runner, [0, 1, 2, 0, 1], max_tokens=40, **params)
    assert runner.most_rows == 1


def test_nothing_is_guessed_beside_another_answer() -> None:
    runner = FakeRunner(vocabulary=FEW)
    engine = engine_of(8, runner)
    for number in (1, 2):
        engine.submit(request(number, [0, 1, 2, 0, 1], max_tokens=20))
    engine.step()
    for _ in range(10):
        engine.step()
    assert runner.most_rows == 2


def test_a_step_has_no_more_tokens_than_it_was_given() -> None:
    runner = FakeRunner(vocabulary=FEW)
    engine = engine_of(8, runner)
    engine.submit(request(1, [0], max_tokens=60))
    while engine.has_work:
        engine.step(2)
    assert runner.most_tokens == 2


def test_a_full_cache_leaves_no_room_for_guesses() -> None:
    prompt = [0, 1, 2, 0, 1, 2]
    full = FakeRunner(vocabulary=FEW, num_blocks=8)
    guessed, _ = answered(8, full, prompt, max_tokens=20, temperature=0.0)
    plain, _ = answered(0, FakeRunner(vocabulary=FEW), prompt, max_tokens=20, temperature=0.0)
    assert guessed == plain


def test_what_a_guess_costs_is_asked_for_ahead() -> None:
    """A vault asks for as many tokens as its next step has."""
    runner = FakeRunner(vocabulary=FEW)
    engine = engine_of(4, runner)
    engine.submit(request(1, [0, 1, 2, 0, 1], max_tokens=80))
    engine.step()
    wanted = set()
    while engine.has_work:
        before, asked = runner.computed_tokens, engine.remaining
        engine.step()
        assert runner.computed_tokens - before == asked
        wanted.add(asked)
    assert 1 in wanted and max(wanted) == 5


def test_what_followed_before_is_proposed() -> None:
    assert propose([1, 2, 3, 4, 9, 1, 2], 2) == (3, 4)
    assert propose([1, 2, 7, 1, 2, 8, 1, 2], 1) == (8,)  # the latest occurrence counts
    assert propose([5, 1, 2, 7, 6, 1, 2, 8, 5, 1, 2], 1) == (7,)  # a longer match counts more
    assert propose([1, 2, 3], 4) == () and propose([1], 4) == () and propose([1, 2, 1, 2], 0) == ()
