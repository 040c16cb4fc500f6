"""What the engine promises its callers: right tokens, right endings, and nothing left behind."""

from __future__ import annotations

import logging
import random

import pytest

from cloister.engine.base import EngineRequest
from cloister.errors import ServiceUnavailable
from cloister.messages.generation import Accepted, Failed, Tokens
from tests.engine.fake_runner import FakeRunner, expected_logits
from tests.engine.node import Answer, alone, answers_to, drain, make_engine, request


def crowd(count: int, seed: int = 0, tenants: str = "abc") -> list[EngineRequest]:
    """Requests of many lengths and all kinds of parameters."""
    chance = random.Random(seed)
    requests = []
    for number in range(count):
        prompt = [chance.randrange(32) for _ in range(chance.choice([1, 2, 5, 16, 17, 40]))]
        requests.append(
            request(
                number,
                prompt,
                chance.choice(tenants),
                max_tokens=chance.randrange(1, 24),
                temperature=chance.choice([0.0, 0.0, 0.7, 1.3]),
                seed=chance.randrange(10**9),
                top_k=chance.choice([0, 5]),
                top_p=chance.choice([1.0, 0.8]),
                frequency_penalty=chance.choice([0.0, 0.5]),
                repetition_penalty=chance.choice([1.0, 1.2]),
                logprobs=chance.choice([None, 0, 3]),
                prompt_logprobs=chance.choice([None, None, 2]),
                stop_tokens=chance.choice([(), (3, 9)]),
            )
        )
    return requests


def test_greedy_output_is_the_argmax_of_the_model():
    prompt = [4, 8, 15]
    answer = alone(request(1, prompt, temperature=0, max_tokens=12))
    tokens = list(prompt)
    for token in answer.tokens:
        assert token == int(expected_logits(tokens, 32)[-1].argmax())
        tokens.append(token)
    assert len(answer.tokens) == 12 and answer.finish == "length"


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64, 512])
def test_chunk_sizes_do_not_change_answers(chunk):
    requests = crowd(12)
    runner = FakeRunner(num_blocks=1000)
    assert answers_to(make_engine(runner, chunk_tokens=chunk), requests) == {r.request_id: alone(r) for r in requests}
    assert runner.most_tokens <= chunk


@pytest.mark.parametrize("num_blocks", [18, 22, 32])
def test_preemption_does_not_change_answers(num_blocks):
    requests = crowd(24, seed=num_blocks)
    engine = make_engine(FakeRunner(num_blocks=num_blocks, max_context=64), chunk_tokens=32)
    assert answers_to(engine, requests) == {r.request_id: alone(r, max_context=64) for r in requests}
    assert engine.stats().preemptions > 0 and engine.stats().blocks_free == num_blocks


@pytest.mark.parametrize("max_running", [1, 3, 64])
def test_company_and_order_do_not_change_answers(max_running):
    requests = crowd(32, seed=5)
    random.Random(max_running).shuffle(requests)
    engine = make_engine(FakeRunner(num_blocks=300), max_running=max_running)
    assert answers_to(engine, requests) == {r.request_id: alone(r) for r in requests}


def test_a_replay_in_one_forced_pass_gives_the_bits_of_decoding():
    decoded = alone(request(1, [7, 7, 1], max_tokens=30, logprobs=3, seed=11))
    for chunk in (5, 512):
        replay_request = request(2, [7, 7, 1, *decoded.tokens], max_tokens=0, prompt_logprobs=3)
        replay = answers_to(make_engine(chunk_tokens=chunk), [replay_request])[2]
        assert replay.tokens == [] and replay.finish == "length"
        assert list(replay.prompt_logprobs or ())[2:] == decoded.logprobs


def test_a_forced_pass_wants_few_rows_at_a_time():
    runner = FakeRunner(num_blocks=1000)
    requests = [request(i, [i % 32] * 200, prompt_logprobs=0, max_tokens=1) for i in range(4)]
    answers = answers_to(make_engine(runner, chunk_tokens=512), requests)
    assert all(len(answer.prompt_logprobs or ()) == 199 for answer in answers.values())
    assert runner.most_rows <= 64 + 4


def test_a_long_prompts_scores_come_in_pieces(monkeypatch):
    whole = alone(request(1, [7] * 60, prompt_logprobs=2, max_tokens=2))
    monkeypatch.setattr("cloister.engine.paged.SCORES_AT_ONCE", 25)
    engine = make_engine()
    engine.submit(request(1, [7] * 60, prompt_logprobs=2, max_tokens=2))
    messages = []
    while engine.has_work:
        messages += engine.step()
    assert [(len(m.prompt_logprobs or ()), len(m.tokens)) for m in messages] == [(25, 0), (25, 0), (9, 1), (0, 1)]
    assert alone(request(1, [7] * 60, prompt_logprobs=2, max_tokens=2)) == whole


def test_prompt_logprobs_of_a_single_token_are_empty():
    answer = alone(request(1, [5], prompt_logprobs=4, max_tokens=0))
    assert answer.prompt_logprobs == () and answer.finish == "length"


def test_a_stop_token_ends_the_answer_and_is_part_of_it():
    free = alone(request(1, [3], max_tokens=40, seed=2))
    stop = free.tokens[10]
    stopped = alone(request(1, [3], max_tokens=40, seed=2, stop_tokens=(stop,)))
    cut = free.tokens.index(stop) + 1
    assert stopped.tokens == free.tokens[:cut] and stopped.finish == "stop"


def test_a_full_context_ends_the_answer():
    answer = alone(request(1, range(10), max_tokens=100), max_context=24)
    assert len(answer.tokens) == 14 and answer.finish == "length"


def test_a_pool_smaller_than_the_context_bounds_it():
    engine = make_engine(FakeRunner(num_blocks=6, max_context=256))
    assert engine.max_context == 18
    answer = answers_to(engine, [request(1, range(10), max_tokens=100)])[1]
    assert len(answer.tokens) == 8 and answer.finish == "length"


def test_settings_bound_the_context_too():
    assert make_engine(max_context=50).max_context == 50
    assert make_engine(FakeRunner(num_blocks=1000), max_context=5000).max_context == 256


def test_requests_that_cannot_be_served_are_refused_at_once():
    engine = make_engine(FakeRunner(max_context=16))
    refused = {
        "context_length_exceeded": request(1, [0] * 16),
        "invalid_request": request(2, [32]),
    }
    for code, submit in refused.items():
        answer = engine.submit(submit)
        assert isinstance(answer, Failed) and answer.code == code
    bias = engine.submit(request(3, [1], logit_bias={32: 1.0}))
    assert isinstance(bias, Failed) and "logit_bias" in bias.message
    assert engine.submit(request(4, [0] * 15)) == Accepted(4)
    assert engine.submit(request(5, [0] * 16, max_tokens=0, prompt_logprobs=0)) == Accepted(5)
    twice = engine.submit(request(5, [1]))
    assert isinstance(twice, Failed)
    assert len(drain(engine)) == 2


def test_a_full_queue_says_when_to_come_back():
    engine = make_engine(max_waiting=3, max_waiting_per_tenant=2)
    assert [type(engine.submit(request(i, [1], "a"))) for i in range(3)] == [Accepted, Accepted, Failed]
    assert isinstance(engine.submit(request(3, [1], "b")), Accepted)
    full = engine.submit(request(4, [1], "b"))
    assert isinstance(full, Failed) and full.code == "queue_full" and full.retry_after >= 1
    assert set(drain(engine)) == {0, 1, 3}
    assert isinstance(engine.submit(request(5, [1], "b")), Accepted)


def test_cancel_in_every_state():
    engine = make_engine(FakeRunner(num_blocks=40), max_running=2, chunk_tokens=8)
    for number, length in enumerate((4, 60, 4)):
        engine.submit(request(number, range(length % 32 or 1) if length < 32 else [1] * length, max_tokens=50))
    answers: dict[int, Answer] = {}
    for _ in range(3):
        for message in engine.step():
            answers.setdefault(message.request_id, Answer()).take(message)
    assert engine.stats().running == 2 and engine.stats().waiting == 1  # one decodes, one prefills, one waits
    assert [engine.cancel(n) for n in (2, 1, 0)] == [Tokens(n, finish="cancelled") for n in (2, 1, 0)]
    assert engine.cancel(0) is None and engine.cancel(12345) is None
    assert not engine.has_work and engine.stats().blocks_free == 40
    assert engine.step() == []


def test_cancelling_neighbours_changes_nothing_for_those_who_stay():
    chance = random.Random(3)
    requests = crowd(40, seed=9)
    engine = make_engine(FakeRunner(num_blocks=30), chunk_tokens=24, max_running=6)
    for submit in requests:
        engine.submit(submit)
    answers: dict[int, Answer] = {}
    gone: set[int] = set()
    while engine.has_work:
        for message in engine.step():
            answers.setdefault(message.request_id, Answer()).take(message)
        victim = chance.randrange(60)
        if chance.random() < 0.4 and engine.cancel(victim):
            gone.add(victim)
    assert gone and engine.stats().blocks_free == 30
    for submit in requests:
        if submit.request_id not in gone:
            assert answers[submit.request_id] == alone(submit)


@pytest.mark.parametrize(
    ("error", "code"),
    [(RuntimeError("secret words"), "internal_error"), (ServiceUnavailable("Gone."), "service_unavailable")],
)
def test_a_failing_step_fails_its_batch_and_no_more(error, code, caplog):
    runner = FakeRunner()
    engine = make_engine(runner, max_running=2)
    requests = [request(i, [i + 1] * 5) for i in range(4)]
    for submit in requests:
        engine.submit(submit)
    engine.step()
    runner.fail_next = error
    with caplog.at_level(logging.DEBUG):
        failed = engine.step()
    assert [(m.request_id, m.code) for m in failed if isinstance(m, Failed)] == [(0, code), (1, code)]
    assert "secret" not in caplog.text and "secret" not in failed[0].message
    answers = drain(engine)
    assert answers == {r.request_id: alone(r) for r in requests[2:]}
    assert engine.stats().blocks_free == 64


def test_rows_that_do_not_match_fail_the_batch():
    class ShortRunner(FakeRunner):
        def forward(self, chunks):
            return super().forward(chunks)[:-1]

    engine = make_engine(ShortRunner())
    engine.submit(request(1, [1, 2]))
    (failed,) = engine.step()
    assert isinstance(failed, Failed) and failed.code == "service_unavailable" and not engine.has_work


def test_stats_count_tokens_once_however_often_they_are_recomputed():
    requests = crowd(24, seed=16)
    engine = make_engine(FakeRunner(num_blocks=18, max_context=64), chunk_tokens=32)
    answers = answers_to(engine, requests)
    stats = engine.stats()
    assert stats.preemptions > 0
    assert stats.prompt_tokens == sum(len(r.prompt) for r in requests)
    assert stats.output_tokens == sum(len(a.tokens) for a in answers.values())


def test_a_prefix_cache_that_keeps_everything_cannot_hang_the_engine():
    from tests.engine.shared_blocks import SharedBlocks

    class Miser(SharedBlocks):
        def evict(self, count: int) -> None:
            pass

    engine = make_engine(FakeRunner(num_blocks=6), Miser())
    answers_to(engine, [request(1, range(12), max_tokens=6)])
    assert engine.submit(request(2, range(20, 32), max_tokens=6)) == Accepted(2)
    assert drain(engine, limit=10)[2].failed is not None


class TimedRunner(FakeRunner):
    @property
    def seconds(self) -> dict[str, float]:
        return {"waiting": 0.25, "rest": 0.5, "of no name we know": 1.0}


def test_stats_say_where_the_time_went():
    engine = make_engine(TimedRunner(num_blocks=64))
    assert engine.stats().seconds == {"waiting": 0.25, "rest": 0.5, "step": 0.0}
    answers_to(engine, crowd(2))
    assert engine.stats().seconds["step"] > 0
