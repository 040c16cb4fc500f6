"""The seam for prefix reuse, proved with the smallest cache that reuses anything."""

from __future__ import annotations

import random

from tests.engine.fake_runner import FakeRunner
from tests.engine.node import alone, answers_to, drain, make_engine, request
from tests.engine.shared_blocks import SharedBlocks

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
    assert engine.stats().blocks_free + len(cache.kept) == 14


def test_blocks_lent_to_one_who_must_wait_go_back():
    cache = SharedBlocks()
    engine = make_engine(FakeRunner(num_blocks=16), cache, chunk_tokens=64)
    answers_to(engine, [request(1, PREFIX, "a", max_tokens=1)])
    engine.submit(request(2, [9] * 30, "a", max_tokens=10))
    engine.step()
    engine.submit(request(3, [*PREFIX, *range(14)], "a", max_tokens=2))
    engine.step()
    assert cache.lent > 0 and engine.stats().waiting == 1
    assert all(engine._pool.references(block) == 1 for (_, tokens), block in cache.kept.items() if tokens[0] == 0)
    drain(engine)
    assert engine.stats().blocks_free + len(cache.kept) == 16


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
