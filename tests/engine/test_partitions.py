"""A prompt in a vault: the engine goes on from the first token as if it had chosen it, and no link harms another."""

from __future__ import annotations

import random

import msgspec
import pytest

from cloister.engine.base import EngineRequest
from cloister.errors import ProtocolError, VaultLost, error_from_code
from cloister.messages.generation import Accepted, Failed, Tokens
from tests.engine.fake_runner import FakeRunner
from tests.engine.node import Answer, alone, answers_to, drain, make_engine, request, split, without_first
from tests.engine.shared_blocks import SharedBlocks

PROMPT = [4, 8, 15, 16, 23, 30, 1, 2, 9, 7]


def engine_with_links(runner: FakeRunner, links: int = 1, **settings: int):
    engine = make_engine(runner, **settings)
    for link in range(links):
        engine.attach_link(link, 10, 11)
    return engine


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("public", [0, 3, 4, 9])
@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0},
        {"seed": 7, "max_tokens": 40},
        {"seed": 7, "top_k": 4, "top_p": 0.7, "logprobs": 2},
        {"seed": 3, "frequency_penalty": 1.5, "presence_penalty": -0.5, "max_tokens": 60},
        {"temperature": 0, "presence_penalty": 2.0, "max_tokens": 30},
        {"seed": 5, "logit_bias": {3: 4.0, 9: -100.0}, "max_tokens": 20},
        {"seed": 1, "stop_tokens": (3, 9, 11), "max_tokens": 100},
        {"seed": 2, "stop_tokens": tuple(range(32))},
        {"seed": 1, "stop_tokens": (3, 9, 11), "min_tokens": 30, "max_tokens": 100},
        {"temperature": 0, "stop_tokens": tuple(range(16)), "min_tokens": 7, "logprobs": 1},
        {"seed": 1, "max_tokens": 1},
        {"seed": 1, "max_tokens": 2},
        {"seed": 1, "max_tokens": 1000},
    ],
    ids=str,
)
def test_partitioned_is_open_token_for_token(relative, public, params):
    runner = FakeRunner(num_blocks=100, relative=relative)
    submit = request(1, PROMPT, **params)
    parted = split(submit, runner, public=public)
    assert list(parted.prompt) == PROMPT[:public]
    whole = alone(submit)
    assert answers_to(engine_with_links(runner), [parted])[1] == without_first(whole)


@pytest.mark.parametrize(("relative", "public"), [(True, 4), (False, 0), (False, 4)])
def test_an_answer_ends_with_the_context_also_where_the_vault_did_not_see_to_it(relative, public):
    runner = FakeRunner(num_blocks=100, max_context=40, relative=relative)
    parted = split(request(1, PROMPT, max_tokens=20), runner, public=public)
    parted = msgspec.structs.replace(parted, params=msgspec.structs.replace(parted.params, max_tokens=1000))
    whole = alone(request(1, PROMPT, max_tokens=1000), max_context=40)
    assert len(whole.tokens) == 30
    assert answers_to(engine_with_links(runner), [parted])[1] == without_first(whole)


def test_an_answer_that_ended_with_its_first_token_says_so_and_computes_nothing():
    runner = FakeRunner()
    engine = engine_with_links(runner)
    for number, params, finish in ((1, {"max_tokens": 1}, "length"), (2, {"stop_tokens": tuple(range(32))}, "stop")):
        assert engine.submit(split(request(number, PROMPT, **params), runner)) == Accepted(number)
        assert engine.has_work and engine.step() == [Tokens(number, finish=finish)] and not engine.has_work
    assert runner.computed_tokens == 0
    engine.submit(split(request(3, PROMPT, max_tokens=1), runner))
    assert isinstance(engine.submit(request(3, [1])), Failed)
    assert engine.cancel(3) == Tokens(3, finish="cancelled") and not engine.has_work


def crowd(count: int, runner: FakeRunner, links: int, seed: int = 0) -> tuple[list[EngineRequest], dict[int, Answer]]:
    """Requests of all kinds, some open, some partitioned over one of the links; and what each must be answered."""
    chance = random.Random(seed)
    requests, expected = [], {}
    for number in range(count):
        prompt = [chance.randrange(32) for _ in range(chance.choice([1, 2, 5, 16, 17, 30]))]
        submit = request(
            number,
            prompt,
            chance.choice("abc"),
            max_tokens=chance.randrange(2, 24),
            seed=chance.randrange(10**9),
            frequency_penalty=chance.choice([0.0, 0.7]),
            stop_tokens=chance.choice([(), (3, 9)]),
        )
        public = chance.choice([0, 0, len(prompt) // 2])
        whole = alone(submit, max_context=runner.max_context)
        if chance.random() < 0.6:
            requests.append(split(submit, runner, public=public, link=number % links, slot=number))
            expected[number] = without_first(whole)
        else:
            requests.append(msgspec.structs.replace(submit, public=public))
            expected[number] = whole
    return requests, expected


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("num_blocks", [18, 24])
def test_preemption_and_company_change_nothing(num_blocks, relative):
    runner = FakeRunner(num_blocks=num_blocks, max_context=64, relative=relative)
    requests, expected = crowd(30, runner, links=3, seed=num_blocks)
    engine = engine_with_links(runner, 3, chunk_tokens=16)
    assert answers_to(engine, requests) == expected
    assert engine.stats().preemptions > 0 and engine.stats().blocks_free == num_blocks


@pytest.mark.parametrize("link_rows", [1, 2, 5])
def test_a_link_carries_no_more_rows_in_a_step_than_it_has(link_rows):
    runner = FakeRunner(num_blocks=20, max_context=64, link_rows=link_rows)
    requests, expected = crowd(30, runner, links=2, seed=1)
    engine = engine_with_links(runner, 2)
    assert answers_to(engine, requests) == expected
    assert engine.stats().preemptions > 0 and runner.most_link_rows == link_rows


def test_public_rows_ask_nobody_and_do_not_count():
    runner = FakeRunner(link_rows=1)
    engine = engine_with_links(runner)
    parted = split(request(1, PROMPT * 3, max_tokens=3), runner, public=29)
    engine.submit(parted)
    (message,) = engine.step()  # 29 public rows and one generated in one go
    assert isinstance(message, Tokens) and runner.computed_tokens == 30


def test_those_who_found_the_link_full_go_first_in_the_next_step():
    runner = FakeRunner(num_blocks=200, link_rows=2)
    engine = engine_with_links(runner)
    for number in range(6):
        engine.submit(split(request(number, PROMPT, max_tokens=50), runner, slot=number))
    turns = [number for _ in range(30) for number in sorted(m.request_id for m in engine.step())]
    assert {number: turns.count(number) for number in range(6)} == dict.fromkeys(range(6), 10)


@pytest.mark.parametrize("reason", ["vault_lost", "vault_timeout", "link_malformed"])
def test_a_broken_link_fails_its_own_and_no_other(reason):
    runner = FakeRunner(num_blocks=40, max_context=64)
    requests, expected = crowd(30, runner, links=3, seed=5)
    engine = engine_with_links(runner, 3, max_running=12, chunk_tokens=32)
    answers: dict[int, Answer] = {}
    for submit in requests:
        assert engine.submit(submit) == Accepted(submit.request_id)
    for step in range(1000):
        runner.break_next = {1: reason} if step == 4 else {}
        for message in engine.step():
            answers.setdefault(message.request_id, Answer()).take(message)
        if not engine.has_work:
            break
    doomed = {r.request_id for r in requests if any(one.link == 1 for one in r.partitions)}
    failed = {number for number, answer in answers.items() if answer.failed}
    assert failed and failed <= doomed
    for number, answer in answers.items():
        if number in failed:
            assert answer.failed and answer.failed.code == "vault_lost"
            assert answer.failed.message == str(VaultLost.because(reason))
            assert answer.tokens == expected[number].tokens[: len(answer.tokens)]
        else:
            assert answer == expected[number]
    assert engine.stats().blocks_free == 40
    late = engine.submit(split(request(99, PROMPT), runner, link=1))
    assert isinstance(late, Failed) and late.message == str(VaultLost.because(reason))
    assert 1 in runner.attached  # until the controller says that the vault is gone


def test_a_dropped_link_fails_all_its_requests_wherever_they_are():
    runner = FakeRunner(num_blocks=40)
    engine = engine_with_links(runner, 2, max_running=2)
    for number in range(4):
        engine.submit(split(request(number, PROMPT, max_tokens=20), runner, link=number % 2, slot=number))
    engine.step()
    assert engine.stats().running == 2 and engine.stats().waiting == 2
    failed = engine.detach_link(0)
    assert {(m.request_id, m.code) for m in failed} == {(0, "vault_lost"), (2, "vault_lost")}
    assert set(runner.attached) == {1}
    answers = drain(engine)
    assert set(answers) == {1, 3} and all(answer.finish == "length" for answer in answers.values())
    assert engine.detach_link(0) == [] and engine.stats().blocks_free == 40
    engine.attach_link(0, 5, 6)
    assert engine.submit(split(request(9, PROMPT), runner)) == Accepted(9)


@pytest.mark.parametrize("error", [ProtocolError("Another model."), OSError()])
def test_a_link_that_cannot_be_mapped_is_broken_from_the_start(error):
    runner = FakeRunner()
    engine = engine_with_links(runner, 1)
    runner.fail_next = error
    engine.attach_link(1, 5, 6)
    refused = engine.submit(split(request(1, PROMPT), runner, link=1))
    assert isinstance(refused, Failed) and refused.message == str(VaultLost.because("link_malformed"))
    assert engine.submit(split(request(2, PROMPT), runner, link=0)) == Accepted(2)
    assert engine.detach_link(1) == []
    with pytest.raises(ProtocolError):
        engine.attach_link(0, 5, 6)


def test_the_error_of_a_lost_vault_is_one_to_try_again_after():
    lost = VaultLost.because("vault_timeout")
    assert lost.code == "vault_lost" and "Send the request again." in str(lost)
    assert isinstance(error_from_code("vault_lost", lost.message), VaultLost)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"params": {"repetition_penalty": 1.1}}, "repetition_penalty"),
        ({"params": {"prompt_logprobs": 0}}, "prompt_logprobs"),
        ({"partitions": {"first": 32}}, "A token is outside"),
        ({"partitions": {"origin": 256}}, "266 tokens"),
        ({"partitions": {"rotation": 300}}, "300 tokens"),
        ({"public": 3}, "public"),
        ({"public": 5}, "public"),
        ({"partitions": {"link": 8}}, "ended"),
    ],
    ids=str,
)
def test_what_cannot_be_partitioned_is_refused_at_once(change, word):
    runner = FakeRunner(num_blocks=100)
    engine = engine_with_links(runner)
    parted = split(request(1, PROMPT), runner, public=4)
    fields = {
        name: (msgspec.structs.replace(parted.partitions[0], **to),)
        if name == "partitions"
        else msgspec.structs.replace(getattr(parted, name), **to)
        if isinstance(to, dict)
        else to
        for name, to in change.items()
    }
    refused = engine.submit(msgspec.structs.replace(parted, **fields))
    assert isinstance(refused, Failed) and word in refused.message
    assert not engine.has_work
    assert engine.submit(parted) == Accepted(1)


def test_an_empty_prompt_needs_a_vault_and_a_public_span_a_prompt():
    engine = make_engine()
    for submit in (request(1, []), msgspec.structs.replace(request(2, [1, 2]), public=3)):
        refused = engine.submit(submit)
        assert isinstance(refused, Failed) and refused.code == "invalid_request"


def test_blocks_are_reused_where_the_same_tokens_are_split_alike():
    runner, cache = FakeRunner(num_blocks=100), SharedBlocks()
    engine = make_engine(runner, cache)
    engine.attach_link(0, 1, 2)
    long = [*range(20)]
    answers_to(engine, [msgspec.structs.replace(request(1, long, max_tokens=12), public=10)])
    assert {len(tokens) // 16 for _, tokens in cache.kept} == {1, 2, 3, 4, 5}  # three public, two whole private
    parted = split(request(2, long, max_tokens=12), runner, public=10)
    before = runner.computed_tokens
    assert answers_to(engine, [parted])[2] == without_first(alone(request(2, long, max_tokens=12)))
    assert cache.lent == 3 and runner.computed_tokens - before == 11  # all answers but the last
    whole = request(3, long, max_tokens=12)
    assert answers_to(engine, [whole])[3] == alone(whole)
    assert cache.lent == 5, "of a prompt that is not split, the blocks before the end of the public span"
    again = msgspec.structs.replace(request(4, [*long, 9], max_tokens=12), public=10)
    assert answers_to(engine, [again])[4] == alone(again)
    assert cache.lent == 10, "split alike, private blocks too"


def test_a_partition_offers_its_public_span_as_soon_as_it_is_computed():
    runner, cache = FakeRunner(num_blocks=100), SharedBlocks()
    engine = make_engine(runner, cache)
    engine.attach_link(0, 1, 2)
    engine.submit(split(request(1, PROMPT, max_tokens=12), runner, public=8))
    engine.step()
    assert {len(tokens) // 16 for _, tokens in cache.kept} == {1, 2}


def several(runner: FakeRunner, prompts: list[list[int]], public: int = 0, **params: object) -> EngineRequest:
    """One request with a sequence for each prompt, all in vaults."""
    parted = [split(request(1, prompt, **params), runner, public=public, slot=at) for at, prompt in enumerate(prompts)]
    return msgspec.structs.replace(parted[0], partitions=tuple(each.partitions[0] for each in parted))


def streams_of(engine, request_id: int = 1) -> dict[int, list[int]]:
    """What each sequence says until the request ends, which is said once, with the last of their tokens."""
    streams: dict[int, list[int]] = {}
    finishes = []
    while engine.has_work:
        for message in engine.step():
            if message.request_id == request_id:
                assert not finishes, "a message after the last"
                streams.setdefault(message.sequence, []).extend(message.tokens)
                finishes += [message.finish] if message.finish else []
    assert len(finishes) == 1
    return streams


VARIANTS = [[*PROMPT[:5], 3, at, *PROMPT[5:]] for at in range(5)]


@pytest.mark.parametrize("public", [0, 4])
@pytest.mark.parametrize(
    ("settings", "blocks"),
    [({}, 100), ({"max_running": 2}, 100), ({"chunk_tokens": 3}, 100), ({}, 24), ({"max_running": 3}, 24)],
    ids=str,
)
def test_sequences_of_one_request_say_what_each_would_alone_and_end_together(settings, blocks, public):
    params = {"seed": 4, "max_tokens": 60, "stop_tokens": (3, 9)}
    own_end = [len(alone(request(1, prompt, **params)).tokens) for prompt in VARIANTS]
    assert len(set(own_end)) > 2 and max(own_end) < 60, "they would end at different times"
    runner = FakeRunner(num_blocks=blocks)
    engine = engine_with_links(runner, **settings)
    assert engine.submit(several(runner, VARIANTS, public, **params)) == Accepted(1)
    streams = streams_of(engine)
    lengths = {len(said) for said in streams.values()}
    assert len(streams) == len(VARIANTS) and len(lengths) == 1, "one shape"
    whole = lengths.pop() + 1
    assert whole >= max(own_end)
    if not settings and blocks == 100:
        assert whole == max(own_end), "not longer than the longest"
    for number, prompt in enumerate(VARIANTS):
        straight = alone(request(1, prompt, seed=4, max_tokens=whole)).tokens
        assert streams[number] == straight[1:], "as it would go on alone, also past its end"
    assert engine.stats().blocks_free == engine.stats().blocks_total


def test_sequences_of_one_request_end_with_the_limit_where_one_does_not_stop():
    runner = FakeRunner(num_blocks=100)
    engine = engine_with_links(runner)
    engine.submit(several(runner, VARIANTS, seed=4, max_tokens=3, stop_tokens=(3,)))
    assert {len(said) for said in streams_of(engine).values()} == {2}
    engine.submit(several(runner, VARIANTS, seed=4, stop_tokens=tuple(range(32))))
    assert engine.step() == [Tokens(1, finish="stop")] and not engine.has_work, "all ended with their first tokens"


def test_the_failure_of_one_sequence_is_that_of_all_and_a_cancel_ends_all():
    runner = FakeRunner(num_blocks=100)
    engine = engine_with_links(runner, max_running=2)
    engine.submit(several(runner, VARIANTS, max_tokens=20))
    engine.step()
    runner.fail_next = RuntimeError("on purpose")
    [told] = engine.step()
    assert isinstance(told, Failed) and not engine.has_work
    engine.submit(several(runner, VARIANTS, max_tokens=20))
    engine.step()
    assert engine.cancel(1) == Tokens(1, finish="cancelled") and not engine.has_work
    engine.submit(several(runner, VARIANTS, max_tokens=20))
    engine.step()
    assert len(engine.detach_link(0)) == 1 and not engine.has_work
    assert engine.stats().blocks_free == engine.stats().blocks_total


def test_sequences_that_do_not_all_find_room_are_not_taken_in_at_all():
    runner = FakeRunner(num_blocks=100)
    engine = engine_with_links(runner, max_waiting_per_tenant=4)
    assert isinstance(engine.submit(several(runner, VARIANTS)), Failed)
    assert not engine.has_work and engine.stats().waiting == 0
    elsewhere = several(runner, VARIANTS[:2])
    first, second = elsewhere.partitions
    apart = msgspec.structs.replace(elsewhere, partitions=(first, msgspec.structs.replace(second, link=1)))
    assert isinstance(engine.submit(apart), Failed), "on one link"
