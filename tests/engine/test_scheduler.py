"""Turns: nobody starves, nothing leaks, and it always comes to an end."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cloister.compute.layout import Layout
from cloister.engine.paged import PagedEngine, _most_positions
from cloister.fairness import CREDIT
from cloister.messages.generation import Accepted, Failed, Tokens
from tests.engine.fake_runner import FakeRunner
from tests.engine.node import Answer, SetPace, alone, make_engine, request, split, without_first
from tests.engine.shared_blocks import SharedBlocks
from tests.examples import examples


def steps_until_token(engine, number: int, limit: int) -> int:
    for step in range(1, limit + 1):
        if any(m.request_id == number and m.tokens for m in engine.step()):
            return step
    raise AssertionError(f"no token of request {number} within {limit} steps")


@pytest.mark.parametrize(
    ("blocks", "settings"),
    [
        pytest.param(2000, {"max_running": 32, "chunk_tokens": 64}, id="slots are full"),
        pytest.param(80, {"max_running": 64, "chunk_tokens": 64}, id="the pool is full"),
        pytest.param(2000, {"max_running": 64, "chunk_tokens": 16}, id="the budget is full"),
        pytest.param(2000, {"max_running": 8, "chunk_tokens": 2}, id="hardly any budget"),
    ],
)
def test_a_newcomer_is_served_soon_whatever_another_has_piled_up(blocks, settings):
    engine = make_engine(FakeRunner(num_blocks=blocks), **settings)
    for number in range(40):
        engine.submit(request(number, [number % 32] * 20, "greedy", max_tokens=200))
    for _ in range(60):
        engine.step()
    engine.submit(request(99, [1, 2, 3, 4], "newcomer"))
    assert steps_until_token(engine, 99, 20) <= 20


@pytest.mark.parametrize(("of", "share"), [("token-{:032x}", 0.4), ("tenant-{}", 0.0)], ids=["tokens", "control"])
def test_many_tokens_have_one_tenants_share(of, share):
    engine = make_engine(FakeRunner(num_blocks=2000), max_running=32, chunk_tokens=4)
    for number in range(20):
        engine.submit(request(number, [number] * 4, of.format(number), max_tokens=500))
    for number in range(20, 40):
        engine.submit(request(number, [number % 32] * 4, "keyed", max_tokens=500))
    told = [m for _ in range(300) for m in engine.step()]
    keyed = sum(len(m.tokens) for m in told if isinstance(m, Tokens) and m.request_id >= 20)
    every = sum(len(m.tokens) for m in told if isinstance(m, Tokens))
    assert share <= keyed / every < share + 0.25


def test_a_newcomer_stays_and_finishes_soon():
    engine = make_engine(FakeRunner(num_blocks=80), max_running=16, chunk_tokens=32)
    for number in range(40):
        engine.submit(request(number, [number % 32] * 20, "greedy", max_tokens=200))
    for _ in range(60):
        engine.step()
    engine.submit(request(99, [1, 2, 3, 4], "newcomer", max_tokens=30))
    for _ in range(60):
        if any(m.request_id == 99 and m.finish for m in engine.step()):
            return
    raise AssertionError("the newcomer was let in but not kept")


def test_with_one_slot_a_newcomer_is_next():
    engine = make_engine(FakeRunner(num_blocks=2000), max_running=1)
    for number in range(20):
        engine.submit(request(number, [1] * 5, "greedy", max_tokens=10))
    engine.step()
    engine.submit(request(99, [1], "newcomer", max_tokens=10))
    assert steps_until_token(engine, 99, 15)


def test_an_endless_stream_of_small_requests_does_not_starve_a_big_one():
    engine = make_engine(FakeRunner(num_blocks=32), max_running=8, chunk_tokens=32)
    number = 0
    for step in range(200):
        while engine.stats().waiting < 4:
            number += 1
            engine.submit(request(number, [2] * 8, f"small{number % 3}", max_tokens=12))
        if step == 20:
            engine.submit(request(10**6, [3] * 100, "big", max_tokens=4))
        if any(m.request_id == 10**6 for m in engine.step()):
            return
    raise AssertionError("the big request starved")


def test_service_is_shared_equally_between_unequal_demands():
    engine = make_engine(FakeRunner(num_blocks=4000), max_running=8, chunk_tokens=64)
    tenant_of: dict[int, str] = {}
    waiting = {"one": 0, "many": 0}
    served = {"one": 0, "many": 0}
    for _ in range(300):
        for tenant, load in (("one", 8), ("many", 60)):
            while waiting[tenant] < load:
                number = len(tenant_of)
                tenant_of[number] = tenant
                waiting[tenant] += 1
                engine.submit(request(number, [1] * 8, tenant, max_tokens=20))
        for message in engine.step():
            served[tenant_of[message.request_id]] += len(message.tokens)
            waiting[tenant_of[message.request_id]] -= message.finish is not None
    assert 0.75 < served["one"] / served["many"] < 1.33


def test_within_a_tenant_first_come_first_served():
    engine = make_engine(FakeRunner(num_blocks=2000), max_running=2)
    for number in range(6):
        engine.submit(request(number, [1] * 4, max_tokens=3))
    finished = []
    while engine.has_work:
        finished += [m.request_id for m in engine.step() if m.finish]
    assert finished == sorted(finished)


def test_who_loses_a_place_comes_back_before_those_who_wait_even_if_the_line_is_full():
    engine = make_engine(FakeRunner(num_blocks=16), max_waiting_per_tenant=4)
    for number in range(2):
        engine.submit(request(number, [number] * 20, max_tokens=30))
    engine.step()
    for number in range(2, 6):
        engine.submit(request(number, [number] * 20, max_tokens=30))
    first_token: list[int] = []
    finished: list[int] = []
    while engine.has_work:
        for message in engine.step():
            if message.request_id not in first_token:
                first_token.append(message.request_id)
            finished += [message.request_id] if message.finish else []
    assert engine.stats().preemptions > 0
    assert first_token == finished == [0, 1, 2, 3, 4, 5]


def test_decoding_goes_on_while_a_long_prompt_is_prefilled():
    engine = make_engine(FakeRunner(num_blocks=2000, max_context=2000), chunk_tokens=16)
    engine.submit(request(1, [1, 2], "a", max_tokens=1000))
    engine.step()
    engine.submit(request(2, [1] * 800, "b", max_tokens=2))
    for _ in range(40):
        assert any(m.request_id == 1 for m in engine.step())


SHORT, LONG = 8, 256


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner(num_blocks=4000, max_context=8000)


@pytest.fixture
def paced(runner: FakeRunner) -> PagedEngine:
    """An engine whose steps are short beside others and long alone."""
    return make_engine(runner, pace=SetPace(SHORT, LONG))


def rows_of_steps(engine: PagedEngine, runner: FakeRunner, until: int) -> list[int]:
    """How many tokens each step computed, up to the one that brings this request's next token."""
    rows: list[int] = []
    while True:
        before = runner.computed_tokens
        messages = engine.step()
        rows.append(runner.computed_tokens - before)
        if any(m.request_id == until and m.tokens for m in messages):
            return rows


def test_alone_a_long_prompt_is_computed_in_long_steps(paced, runner):
    paced.submit(request(1, [1] * 1000, "a"))
    assert rows_of_steps(paced, runner, 1) == [256, 256, 256, 232]


def test_beside_another_tenant_every_step_is_short(paced, runner):
    """Whether the other waits, is prefilled or decodes: what it waits for is one short step. Its own short prompt is
    not cut up."""
    paced.submit(request(1, [1] * 1000, "long"))
    paced.step()
    paced.submit(request(2, [2] * 12, "short", max_tokens=8))
    assert rows_of_steps(paced, runner, 2) == [12]
    for _ in range(7):
        assert [rows <= SHORT for rows in rows_of_steps(paced, runner, 2)] == [True], "a token came with each step"
    assert not any(number == 2 for number in paced._sequences)
    assert max(rows_of_steps(paced, runner, 1)) <= SHORT, "who asks again soon finds steps short"


@pytest.mark.parametrize(("elsewhere", "first"), [({}, 2), ({"b": 1000}, 1)])
def test_what_a_tenant_had_from_vaults_counts_in_its_turns_here(runner, elsewhere, first):
    engine = make_engine(runner, max_running=1)
    for number, tenant in enumerate("ab", 1):
        engine.submit(request(number, [number] * 4, tenant, max_tokens=1))
    engine.meter.merge(elsewhere)
    assert [message.request_id for message in engine.step()] == [first]


def test_what_one_tenant_decodes_leaves_another_its_share_of_a_step(paced, runner):
    for number in range(40):
        paced.submit(request(number, [number % 32] * 4, "floods", max_tokens=500))
    for _ in range(20):
        paced.step()
    paced.submit(request(99, [1] * 40, "modest", max_tokens=1))
    assert rows_of_steps(paced, runner, 99) == [40 + SHORT // 2]
    paced.submit(request(100, [1] * 300, "modest"))  # no short prompt: cut up, and it has half of every step
    *steps, last = rows_of_steps(paced, runner, 100)
    assert max(steps) <= SHORT and last <= SHORT + CREDIT and sum(steps) <= 2 * 300


def test_many_of_one_tenant_are_not_slowed_by_short_steps(paced, runner):
    for number in range(40):
        paced.submit(request(number, [number % 32] * 4, "a", max_tokens=50))
    paced.step()
    before = runner.computed_tokens
    paced.step()
    assert runner.computed_tokens - before == 40


@given(blocks=st.integers(1, 12), prompt=st.integers(0, 60), public=st.integers(0, 60))
def test_what_the_context_allows_fits_the_pool_under_every_layout(blocks, prompt, public):
    longest = _most_positions(blocks, 4)
    layout = Layout(prompt=min(prompt, longest), public=min(public, prompt, longest))
    assert layout.blocks(longest) <= blocks
    if blocks > 2:
        assert Layout(prompt=2, public=1).blocks(longest + 1) > blocks  # and it allows no less than it could


LINKS = (0, 1)


class EngineMachine(RuleBasedStateMachine):
    """Random arrivals, cancellations and failures over a small pool, with and without prefix reuse and vaults."""

    @initialize(
        blocks=st.integers(12, 40),  # fewer would bound the context
        chunk=st.sampled_from([1, 2, 3, 7, 64]),
        max_running=st.sampled_from([1, 2, 5, 64]),
        reuse=st.booleans(),
        relative=st.booleans(),
        link_rows=st.sampled_from([1, 3, 128]),
        short=st.sampled_from([1, 4, 64]),
    )
    def start(self, blocks, chunk, max_running, reuse, relative, link_rows, short):
        self.blocks = blocks
        self.prefix = SharedBlocks() if reuse else None
        self.runner = FakeRunner(num_blocks=blocks, max_context=40, relative=relative, link_rows=link_rows)
        self.engine = make_engine(
            self.runner,
            self.prefix,
            SetPace(short, 2 * short),
            chunk_tokens=chunk,
            max_running=max_running,
            max_waiting_per_tenant=6,
        )
        for link in LINKS:
            self.engine.attach_link(link, 0, 0)
        self.requests = {}
        self.partitions = {}
        self.answers: dict[int, Answer] = {}
        self.number = 0

    @rule(
        tenant=st.sampled_from("abcd"),
        length=st.integers(1, 39),
        kind=st.integers(0, 2),
        max_tokens=st.integers(0, 30),
        seed=st.integers(0, 3),
        forced=st.booleans(),
        public=st.integers(0, 39),
        link=st.sampled_from([None, None, *LINKS]),
    )
    def submit(self, tenant, length, kind, max_tokens, seed, forced, public, link):
        self.number += 1
        prompt = [(kind * 7 + i * 3) % 32 for i in range(length)]
        submit = request(
            self.number, prompt, tenant, max_tokens=max_tokens, seed=seed, prompt_logprobs=1 if forced else None
        )
        public = min(public, length)
        if link is not None and not forced and max_tokens:
            sent = split(submit, self.runner, public=public, link=link, slot=self.number)
            self.partitions[self.number] = link
        else:
            sent = msgspec.structs.replace(submit, public=public)
        answer = self.engine.submit(sent)
        if isinstance(answer, Accepted):
            self.requests[self.number] = submit
            self.answers[self.number] = Answer()
        else:
            assert isinstance(answer, Failed) and answer.code == "queue_full"

    @rule(steps=st.integers(1, 12))
    def step(self, steps):
        for _ in range(steps):
            for message in self.engine.step():
                self.answers[message.request_id].take(message)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data):
        number = data.draw(st.sampled_from(sorted(self.requests)))
        message = self.engine.cancel(number)
        if message is not None:
            self.answers[number].take(message)

    @rule()
    def fail_a_step(self):
        self.runner.fail_next = RuntimeError()
        if self.engine.has_work:
            self.step(1)
        self.runner.fail_next = None

    @rule(link=st.sampled_from(LINKS))
    def break_a_link(self, link):
        self.runner.break_next = {link: "vault_timeout"}
        if self.engine.has_work:
            self.step(1)
        self.runner.break_next = {}
        self.drop(link)

    @rule(link=st.sampled_from(LINKS))
    def drop(self, link):
        for message in self.engine.detach_link(link):
            assert self.partitions[message.request_id] == link
            self.answers[message.request_id].take(message)
        self.engine.attach_link(link, 0, 0)

    @invariant()
    def every_position_has_a_block_of_its_own(self):
        if not hasattr(self, "engine"):
            return
        lent = set(self.prefix.kept.values()) if self.prefix else set()
        seen = set()
        for sequence in self.engine._scheduler.running.values():
            assert len(sequence.blocks.all) >= sequence.layout.blocks(sequence.computed)
            assert len(sequence.blocks.all) == len(set(sequence.blocks.all))
            own = set(sequence.blocks.all) - lent
            assert not own & seen
            seen |= own
        assert self.runner.most_link_rows <= self.runner.capacity

    @invariant()
    def every_reference_has_a_holder(self):
        if not hasattr(self, "engine"):
            return
        scheduler, pool = self.engine._scheduler, self.engine._pool
        held = [0] * self.blocks
        for sequence in scheduler.running.values():
            for block in sequence.blocks.all:
                held[block] += 1
        for block in self.prefix.kept.values() if self.prefix else ():
            held[block] += 1
        assert [pool.references(block) for block in range(self.blocks)] == held
        assert pool.free == held.count(0)
        assert len(scheduler.running) + len(scheduler.waiting) == len(self.engine._all)
        waiting = [s for s in self.engine._all if s.id not in scheduler.running]
        assert all(s.id in scheduler.waiting._lines[s.tenant] and not s.blocks.all for s in waiting)

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        work = sum(len(r.prompt) + r.params.max_tokens for r in self.requests.values())
        for _ in range(200 + 60 * work):
            if not self.engine.has_work:
                break
            self.step(1)
        assert not self.engine.has_work, "the engine does not come to an end"
        kept = len(self.prefix.kept) if self.prefix else 0
        assert self.engine._pool.free + kept == self.blocks
        for number, answer in self.answers.items():
            whole = alone(self.requests[number], max_context=40)
            if number in self.partitions:
                whole = without_first(whole)
                if answer.failed:
                    assert answer.failed.code in ("vault_lost", "internal_error")
            elif answer.failed:
                assert answer.failed.code == "internal_error"
            if answer.failed or answer.finish == "cancelled":
                assert answer.tokens == whole.tokens[: len(answer.tokens)]
            else:
                assert answer == whole


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = examples(30, stateful_step_count=30, suppress_health_check=[HealthCheck.too_slow])
