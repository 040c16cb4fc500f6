"""The seam for prefix reuse, proved with the smallest cache that reuses anything."""

from __future__ import annotations

import random

import msgspec
import pytest

from cloister.engine.base import EngineRequest
from cloister.levels import PolicyName
from cloister.messages.generation import Reuse, Tokens
from cloister.messages.types import SamplingParams
from cloister.prefix.radix import RadixCache
from tests.engine.fake_runner import FakeRunner
from tests.engine.node import Answer, SetPace, alone, answers_to, drain, make_engine, request
from tests.engine.shared_blocks import SharedBlocks
from tests.prefix.keys import pages_in

PREFIX = list(range(20))


def test_lent_blocks_are_not_recomputed_and_the_answer_is_the_same():
    runner, cache = FakeRunner(), SharedBlocks()
    engine = make_engine(runner, cache)
    first, again = request(1, [*PREFIX, 5]), request(2, [*PREFIX, 6])
    assert answers_to(engine, [first])[1] == alone(first)
    before = runner.computed_tokens
    assert answers_to(engine, [again])[2] == alone(again)
    assert cache.lent == 5
    assert runner.computed_tokens - before == 1 + 7  # the one token not cached, then seven decoded


def test_the_last_token_is_always_computed_so_that_there_are_logits():
    runner, cache = FakeRunner(), SharedBlocks()
    engine = make_engine(runner, cache)
    submit = request(1, PREFIX)
    expected = alone(submit)
    assert answers_to(engine, [submit])[1] == expected
    assert answers_to(engine, [submit])[1] == expected
    assert cache.lent == 4  # of five full blocks


def test_another_tenant_misses_where_the_same_tenant_hits():
    cache = SharedBlocks()
    engine = make_engine(prefix=cache)
    answers_to(engine, [request(1, [*PREFIX, 5], "a")])
    answers_to(engine, [request(2, [*PREFIX, 5], "b")])
    assert cache.lent == 0
    answers_to(engine, [request(3, [*PREFIX, 5], "a")])
    assert cache.lent == 5
    assert cache.asked_by == ["a", "b", "a"]


def test_a_forced_pass_borrows_nothing_and_reports_every_row():
    engine = make_engine(prefix=SharedBlocks())
    submit = request(1, PREFIX, prompt_logprobs=2)
    first, second = answers_to(engine, [submit])[1], answers_to(engine, [submit])[1]
    assert len(first.prompt_logprobs or ()) == 19 and first == second == alone(submit)


def test_a_full_cache_gives_way_and_answers_stay_right():
    chance = random.Random(1)
    cache = SharedBlocks()
    engine = make_engine(FakeRunner(num_blocks=14), cache, chunk_tokens=16)
    stems = [[chance.randrange(32) for _ in range(12)] for _ in range(2)]
    requests = [
        request(i, [*stems[i % 2], *(chance.randrange(32) for _ in range(i % 5 + 1))], "ab"[i % 2], seed=i)
        for i in range(30)
    ]
    answers = answers_to(engine, requests)
    assert answers == {r.request_id: alone(r) for r in requests}
    assert cache.lent > 0 and engine.stats().preemptions > 0
    assert engine._pool.free + len(cache.kept) == 14


def test_blocks_lent_to_one_who_must_wait_go_back():
    cache = SharedBlocks()
    engine = make_engine(FakeRunner(num_blocks=16), cache, chunk_tokens=64)
    answers_to(engine, [request(1, PREFIX, "a", max_tokens=1)])
    engine.submit(request(2, [9] * 30, "a", max_tokens=10))
    engine.step()
    engine.submit(request(3, [*PREFIX, *range(14)], "a", max_tokens=2))
    engine.step()
    assert cache.lent > 0 and engine.stats().waiting == 1
    assert all(engine._pool.references(block) == 1 for (_, tokens), block in cache.kept.items() if not any(tokens[:4]))
    drain(engine)
    assert engine._pool.free + len(cache.kept) == 16


def test_hits_do_not_change_turns():
    """The same arrivals finish in the same order whether or not one tenant's prompts are cached."""
    order: list[list[int]] = []
    for cache in (None, SharedBlocks()):
        engine = make_engine(FakeRunner(num_blocks=400), cache, max_running=1, chunk_tokens=512)
        answers_to(engine, [request(99, [*PREFIX, 1], "a")])
        for i in range(8):
            engine.submit(request(i, [*PREFIX, i], "ab"[i % 2], max_tokens=2))
        finished = []
        while engine.has_work:
            finished += [m.request_id for m in engine.step() if m.finish]
        order.append(finished)
    assert order[0] == order[1]


def shared(number: int, prompt: list[int], tenant: str, public: int = 0, **fields: object) -> EngineRequest:
    """A request under the real tree; `safekv` unless said otherwise."""
    made = msgspec.structs.replace(request(number, prompt, tenant, logprobs=2), public=public, policy="counted")
    return msgspec.structs.replace(made, **fields)


@pytest.mark.parametrize("policy", ["none", "global", "partition", "counted"])
def test_whatever_is_found_the_answer_is_the_same_to_the_last_bit(policy: PolicyName) -> None:
    """Logprobs included, beside others, in a pool so small that blocks are evicted and sequences preempted."""
    chance = random.Random(policy)
    cache = RadixCache()
    engine = make_engine(FakeRunner(num_blocks=30), cache, chunk_tokens=16)
    stems = [[chance.randrange(32) for _ in range(13)] for _ in range(2)]
    requests = [
        shared(
            i,
            [*stems[i % 2], *(chance.randrange(32) for _ in range(i % 5 + 1))],
            "abc"[i % 3],
            public=9 * (i % 4 > 1),
            policy=policy,
            salt="s" * (i % 7 == 0),
        )
        for i in range(36)
    ]
    found = 0
    for start in range(0, 36, 12):
        for submit in requests[start : start + 12]:
            engine.submit(submit)
        answers: dict[int, Answer] = {}
        for message in engine.step():
            answers.setdefault(message.request_id, Answer()).take(message)
        for number in range(start, start + 12):
            engine.label(number, 12)
        drain(engine, answers)
        assert answers == {r.request_id: alone(r) for r in requests[start : start + 12]}
        found += sum(answer.cached for answer in answers.values())
    assert (found > 0) == (policy != "none")
    assert engine.stats().blocks_free == 30 and engine._pool.free == 30 - pages_in(cache)


def test_a_tenant_is_told_what_it_found_and_never_what_it_may_not_see() -> None:
    engine = make_engine(prefix=RadixCache())
    prompt = [*PREFIX, 5]
    assert answers_to(engine, [shared(1, prompt, "a")])[1].cached == 0
    assert answers_to(engine, [shared(2, prompt, "b")])[2].cached == 0
    assert answers_to(engine, [shared(3, prompt, "a")])[3].cached == 20
    assert answers_to(engine, [shared(4, prompt, "a", salt="s")])[4].cached == 0
    engine.label(3, 9)
    engine.submit(shared(5, prompt, "c"))
    engine.label(5, 21, 21)
    assert drain(engine)[5].cached == 8, "two whole blocks of what was labelled"
    engine.submit(shared(6, prompt, "a"))
    engine.label(6, 9, 9)
    [first, *_] = [message for message in engine.step() if isinstance(message, Tokens)]
    assert (first.cached, first.shared) == (20, 0), "its own, and no word of what others share"
    assert engine.stats().reuse == {"counted": Reuse(hits=3, misses=3, tokens=48)}


def test_after_forget_nothing_is_found_and_what_is_under_way_leaves_nothing() -> None:
    engine = make_engine(prefix=(cache := RadixCache()))
    answers_to(engine, [shared(1, PREFIX, "a"), shared(2, PREFIX, "b")])
    under_way = shared(3, [*PREFIX, 7, 7, 7, 7, 7], "a")
    engine.submit(under_way)
    engine.step()
    engine.forget("a")
    assert drain(engine)[3].finish == "length"
    assert {one.tenant.name for node in cache.tree.nodes() for one in node.rights} == {"b"}
    assert answers_to(engine, [shared(4, PREFIX, "a")])[4].cached == 0
    assert answers_to(engine, [shared(5, PREFIX, "b")])[5].cached == 16


def test_room_does_not_tell_whether_another_sent_one_prompt_twice() -> None:
    """`a` has two sequences under way, of one prompt or of two; `b` gets in at the same step either way."""
    entered = []
    for second in (PREFIX, list(range(30, 10, -1))):
        engine = make_engine(FakeRunner(num_blocks=20), RadixCache(), SetPace(64, 64), chunk_tokens=64)
        answers_to(engine, [shared(0, PREFIX, "a", params=SamplingParams(max_tokens=1))])
        for number, prompt in enumerate((PREFIX, second), 1):
            engine.submit(shared(number, prompt, "a", params=SamplingParams(max_tokens=4)))
        engine.step()
        engine.submit(shared(3, [9] * 44, "b", params=SamplingParams(max_tokens=2)))  # above its share: displaces none
        steps = 0
        while (3, 0) not in engine._scheduler.running:
            engine.step()
            steps += 1
        entered.append(steps)
    assert entered[0] == entered[1] > 1
