"""A turn's answer is found by the next turn: all but the last page, by the same tenant, with the bits of a prompt."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.compute import layout
from cloister.engine import reuse as engine_answers
from cloister.engine.base import EngineRequest
from cloister.engine.paged import PagedEngine
from cloister.levels import PolicyName
from cloister.messages.types import SamplingParams
from cloister.prefix.base import POLICIES
from cloister.prefix.radix import RadixCache
from tests.engine.fake_runner import FakeRunner
from tests.engine.node import Answer, SetPace, alone, answers_to, drain, make_engine
from tests.prefix.keys import pages_in

FIRST = [random.Random(4).randrange(32) for _ in range(11)]
MORE = [3, 1, 4, 1, 5]
REUSING = [policy for policy in POLICIES if policy != "none"]


def turn(number: int, prompt: Iterable[int], tenant: str = "a", **fields: object) -> EngineRequest:
    params = SamplingParams(max_tokens=22, logprobs=2, temperature=0.8, seed=number)
    made = EngineRequest(number, tenant, tuple(prompt), params, policy="partition")
    return msgspec.structs.replace(made, **fields)


def pages_of(tokens: int) -> int:
    return tokens // 4 * 4


@pytest.fixture
def cache() -> RadixCache:
    return RadixCache()


@pytest.fixture
def engine(cache: RadixCache) -> PagedEngine:
    return make_engine(FakeRunner(num_blocks=256), cache, chunk_tokens=8)


@pytest.mark.parametrize("policy", REUSING)
def test_the_next_turn_finds_all_but_the_last_page(engine: PagedEngine, policy: PolicyName) -> None:
    chat = FIRST
    for number in range(1, 5):
        asked = turn(number, chat, policy=policy)
        found = answers_to(engine, [asked])[number]
        assert found == alone(asked)
        if number > 1:
            assert found.cached == pages_of(len(chat) - len(MORE))
        chat = [*chat, *found.tokens, *MORE]


def test_without_reuse_nothing_is_computed_again() -> None:
    engine = make_engine(runner := FakeRunner(), RadixCache())
    answers_to(engine, [turn(1, FIRST, policy="none")])
    assert runner.computed_tokens == 11 + 21 and engine._pool.free == 64


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("public", [0, 6, 8, 10])
def test_a_public_span_ends_where_it_ended(relative: bool, public: int) -> None:
    engine = make_engine(FakeRunner(num_blocks=256, relative=relative), RadixCache(), chunk_tokens=7)
    first = turn(1, FIRST, public=public)
    said = answers_to(engine, [first])[1]
    again = turn(2, [*FIRST, *said.tokens, *MORE], public=public)
    found = answers_to(engine, [again])[2]
    assert said == alone(first, relative=relative) and found == alone(again, relative=relative)
    assert found.cached == public + pages_of(11 + 22 - public)


def test_several_choices_are_all_found(engine: PagedEngine) -> None:
    several = [turn(number, FIRST) for number in (1, 2, 3)]
    said = answers_to(engine, several)
    for number in (1, 2, 3):
        again = turn(10 + number, [*FIRST, *said[number].tokens, *MORE])
        assert answers_to(engine, [again])[10 + number].cached == pages_of(33)


PENALTIES = {"presence_penalty": 0.9, "frequency_penalty": 0.4, "repetition_penalty": 1.3}


@pytest.mark.parametrize("most", [1, 2, 5, 6, 9])
def test_it_may_end_anywhere_and_penalties_see_the_same(engine: PagedEngine, most: int) -> None:
    """By length, or by a stop token in the middle of a page; that token's own keys were never decoded."""
    stop = alone(turn(1, FIRST)).tokens[most - 1]
    first = turn(1, FIRST, params=SamplingParams(max_tokens=22, temperature=0.8, seed=1, stop_tokens=(stop,)))
    said = answers_to(engine, [first])[1]
    assert said.finish == "stop"
    chat = [*FIRST, *said.tokens]
    again = turn(2, [*chat, *MORE], params=SamplingParams(max_tokens=9, logprobs=1, seed=3, **PENALTIES))
    found = answers_to(engine, [again])[2]
    assert found == alone(again) and found.cached == pages_of(len(chat))


def test_what_a_cancelled_turn_had_said_is_found(engine: PagedEngine) -> None:
    first = turn(1, FIRST)
    engine.submit(first)
    said: list[int] = []
    while len(said) < 10:
        said += [token for message in engine.step() for token in message.tokens]
    engine.cancel(1)
    assert drain(engine) == {}
    again = turn(2, [*FIRST, *said, *MORE])
    found = answers_to(engine, [again])[2]
    assert found == alone(again) and found.cached == pages_of(21)


def test_a_prompt_cancelled_halfway_keeps_what_is_complete(engine: PagedEngine) -> None:
    long = [*range(30)]
    engine.submit(turn(1, long))
    engine.step()
    engine.cancel(1)
    assert not engine.has_work
    assert answers_to(engine, [turn(2, long)])[2].cached == 8


def test_nobody_else_finds_an_answer_however_much_is_labelled(engine: PagedEngine, cache: RadixCache) -> None:
    """A label speaks of a prompt: it ends with it, whether it comes before, while or after the answer is kept."""
    first = turn(1, FIRST, policy="counted")
    engine.submit(first)
    engine.label(1, 8)
    said: list[int] = []
    while not engine.only_spare:
        said += [token for message in engine.step() for token in message.tokens]
    engine.step()
    engine.label(1, 1000)
    drain(engine)
    engine.label(1, 1000)
    public = {node.tokens for node in cache.tree.nodes() if node.namespace is cache.tree.public}
    assert sum(map(len, public)) == 8 * 4, "two whole pages of the prompt"
    chat = [*FIRST, *said, *MORE]
    for number, (tenant, salt) in enumerate((("b", ""), ("b", "s"), ("a", "s")), 2):
        engine.submit(turn(number, chat, tenant, policy="counted", salt=salt))
        engine.label(number, 1000, 1000)
        assert drain(engine)[number].cached == (0 if salt else 8)
    engine.submit(turn(9, chat, policy="counted"))
    engine.label(9, 11)
    assert drain(engine)[9].cached == pages_of(33)


def test_it_is_the_prompts_label_that_bounds_what_is_public(
    engine: PagedEngine, cache: RadixCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the longer key took part in labelling by itself, one label that claims too much would publish the answer."""
    labelled = cache._labels.public_pages
    monkeypatch.setattr(cache._labels, "public_pages", lambda key: 1000 if key.labelled_as is None else labelled(key))
    kept = cache.insert
    monkeypatch.setattr(cache, "insert", lambda key, blocks: kept(replace(key, labelled_as=None), blocks))
    said = answers_to(engine, [turn(1, FIRST, policy="counted")])[1].tokens
    engine.submit(turn(2, [*FIRST, *said, *MORE], "b", policy="counted"))
    drain(engine)
    assert engine.stats().reuse["counted"].tokens == pages_of(33)


def test_a_salt_keeps_its_answers(engine: PagedEngine) -> None:
    said = answers_to(engine, [turn(1, FIRST, salt="s")])[1].tokens
    chat = [*FIRST, *said, *MORE]
    assert answers_to(engine, [turn(2, chat)])[2].cached == 0
    assert answers_to(engine, [turn(3, chat, salt="s")])[3].cached == pages_of(33)


@pytest.mark.parametrize("steps", [0, 1, 2, 50])
def test_a_forgotten_tenants_answers_are_wiped(engine: PagedEngine, cache: RadixCache, steps: int) -> None:
    """While they wait, are computed, or are kept."""
    runner = engine._runner
    assert isinstance(runner, FakeRunner)
    engine.submit(turn(1, FIRST))
    while not engine.only_spare:
        engine.step()
    for _ in range(steps):
        engine.step()
    engine.forget("a")
    assert not engine.has_work and pages_in(cache) == 0 and engine._pool.free == 256
    assert (runner.tokens == -1).all()


def test_a_request_that_comes_meanwhile_goes_first_and_the_rest_is_kept_later(engine: PagedEngine) -> None:
    engine.submit(turn(1, FIRST))
    answers: dict[int, Answer] = {}
    while not engine.only_spare:
        for message in engine.step():
            answers.setdefault(message.request_id, Answer()).take(message)
    engine.step()
    other = turn(2, MORE, "b")
    engine.submit(other)
    assert not any(turn.blocks for turn in engine._answers._turns), "it waits without a block"
    held = engine.stats()
    assert held.blocks_free == held.blocks_total
    for message in engine.step():
        answers.setdefault(message.request_id, Answer()).take(message)
    assert len(answers[2].tokens) == 1, "the other's first token is in the next step"
    drain(engine, answers)
    assert answers[2] == alone(other)
    assert answers_to(engine, [turn(3, [*FIRST, *answers[1].tokens, *MORE])])[3].cached == pages_of(33)


def test_a_next_turn_that_comes_at_once_computes_its_answer_itself(engine: PagedEngine) -> None:
    engine.submit(turn(1, FIRST))
    said: list[int] = []
    while not engine.only_spare:
        said += [token for message in engine.step() for token in message.tokens]
    engine.step()
    again = turn(2, [*FIRST, *said, *MORE])
    engine.submit(again)
    assert len(engine._answers) == 0, "the other half is not computed twice"
    found = drain(engine)[2]
    assert found == alone(again) and found.cached == 12, "one page more than the prompt has"


def test_only_so_many_wait_and_the_busiest_tenant_loses_first(
    engine: PagedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_answers, "MAX_TURNS", 3)
    short = SamplingParams(max_tokens=5)
    for number, tenant in enumerate("baaaa"):
        engine.submit(turn(number, [*FIRST, number], tenant, params=short))
    while not engine.only_spare:
        engine.step()
    assert sorted(turn.key.tenant for turn in engine._answers._turns) == ["a", "a", "b"]
    drain(engine)


def test_a_step_that_fails_loses_answers_and_no_block(engine: PagedEngine, cache: RadixCache) -> None:
    runner = engine._runner
    assert isinstance(runner, FakeRunner)
    engine.submit(turn(1, FIRST))
    while not engine.only_spare:
        engine.step()
    runner.fail_next = RuntimeError("lost")
    assert engine.step() == [] and engine.take_failure()
    assert not engine.has_work and engine._pool.free == 256 - pages_in(cache)


def test_a_turn_whose_prompt_was_evicted_is_let_go(engine: PagedEngine, cache: RadixCache) -> None:
    engine.submit(turn(1, FIRST))
    while not engine.only_spare:
        engine.step()
    engine._prefix.evict(256)
    assert pages_in(cache) == 0
    engine.step()
    assert not engine.has_work and engine._pool.free == 256


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_chats_get_the_answers_they_would_get_without_reuse(data: st.DataObject) -> None:
    """Several tenants' chats in turn, in a pool that cannot hold them all, with labels, salts, spans and cancels."""
    draw = data.draw
    engine = make_engine(
        FakeRunner(num_blocks=draw(st.integers(24, 90)), relative=draw(st.booleans())),
        cache := RadixCache(),
        SetPace(draw(st.integers(1, 6)), draw(st.integers(2, 20))),
        chunk_tokens=20,
    )
    relative = engine._runner.relative
    heads = [(tenant, draw(st.sampled_from(REUSING)), draw(st.sampled_from(["", "s"]))) for tenant in "aab"]
    spans = [draw(st.integers(0, 7)) for _ in heads]
    chats = [[draw(st.integers(0, 3)) for _ in range(8)] for _ in heads]
    for number in range(draw(st.integers(2, 9))):
        which = draw(st.integers(0, len(heads) - 1))
        tenant, policy, salt = heads[which]
        params = SamplingParams(max_tokens=draw(st.integers(1, 9)), logprobs=1, seed=number, presence_penalty=0.5)
        asked = EngineRequest(
            number, tenant, tuple(chats[which]), params, public=spans[which], salt=salt, policy=policy
        )
        engine.submit(asked)
        answers: dict[int, Answer] = {}
        if draw(st.booleans()):
            engine.label(number, draw(st.integers(0, 100)))
        if draw(st.integers(0, 4)) == 0:
            for _ in range(draw(st.integers(0, 4))):
                for message in engine.step():
                    answers.setdefault(number, Answer()).take(message)
            engine.cancel(number)
        while engine.has_work and not (engine.only_spare and draw(st.integers(0, 3)) == 0):
            for message in engine.step():
                answers.setdefault(message.request_id, Answer()).take(message)
        said = answers.get(number, Answer()).tokens
        assert said == alone(asked, relative=relative).tokens[: len(said)]
        if (whole := answers.get(number)) is not None and whole.finish:
            assert whole == alone(asked, relative=relative)
        chats[which] = [*chats[which], *said, draw(st.integers(0, 3))]
        if draw(st.integers(0, 9)) == 0:
            engine.forget(tenant)
    drain(engine)
    assert engine._pool.free == engine._pool.total - pages_in(cache)
    for tenant in "ab":
        engine.forget(tenant)
    assert layout.BLOCK_TOKENS == 4
    runner = engine._runner
    assert isinstance(runner, FakeRunner)
    if pages_in(cache) == 0:
        assert (runner.tokens == -1).all()
