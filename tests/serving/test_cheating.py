"""A real node whose service was taken over: what it carries to another tenant (cloister_bench.privacy.cheating).

Controller and vaults run the honest code. With `--verify off` every channel works: that is the control. No test here
reads a clock: what timing carries is measured by `cloister bench privacy`.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import sleep

import pytest

from cloister.models.source import ModelFolder
from cloister_bench.privacy.cheating import ATTACKS, PROMPT, Answer, CheatingNode, run_trial, running
from cloister_bench.privacy.cheating_code import BYSTANDER, CHUNK

LEVEL = "partitioned"
SMALL = ("--threads", "1", "--max-vaults", "8", "--spare-vaults", "1")
BY_NAME = {attack.name: attack for attack in ATTACKS}
ACCOUNTS = 2


@pytest.fixture(scope="module")
def unverified(short_folder: ModelFolder) -> Iterator[CheatingNode]:
    with running("off", str(short_folder.path), SMALL) as node:
        yield node


@pytest.fixture(scope="module")
def verified(short_folder: ModelFolder) -> Iterator[CheatingNode]:
    with running("all", str(short_folder.path), SMALL, ACCOUNTS) as node:
        yield node


@pytest.fixture(scope="module")
def late(short_folder: ModelFolder) -> Iterator[CheatingNode]:
    with running("late", str(short_folder.path), SMALL) as node:
        yield node


def honest(node: CheatingNode, tokens: int) -> Answer:
    """What an honest service answers to a receiver's question."""
    answer = node.ask(BYSTANDER, PROMPT.format(number=0), LEVEL, tokens)
    assert not answer.error and len(answer.places) == tokens
    return answer


@pytest.mark.parametrize(
    "name", ["tokens", "plausible", "sampled", "logprobs", "usage", "length", "order", "aborts", "failures"]
)
def test_without_verification_every_channel_carries_the_victims_words(unverified: CheatingNode, name: str) -> None:
    trial = run_trial(unverified, BY_NAME[name], LEVEL, 0)
    assert trial is not None and trial.bits and not trial.wrong


@pytest.mark.parametrize("name", ["changed", "far"])
def test_without_verification_a_vault_answers_questions_that_no_answer_needs(
    unverified: CheatingNode, name: str
) -> None:
    trial = run_trial(unverified, BY_NAME[name], LEVEL, 0)
    assert trial is not None and trial.bits == BY_NAME[name].asked - 1


@pytest.mark.parametrize("level", ["open", pytest.param("partitioned", marks=pytest.mark.release)])
def test_a_request_that_asks_for_it_is_verified_whatever_the_node_does(unverified: CheatingNode, level: str) -> None:
    attack = BY_NAME["tokens"]
    carried = run_trial(unverified, attack, level, 0)
    assert carried is not None and carried.bits and not carried.wrong
    got = unverified.ask("tokens-0", PROMPT.format(number=0), level, attack.asked, verify=True)
    assert not got.error and got.places == honest(unverified, attack.asked).places


@pytest.mark.parametrize("name", ["extra", "changed", "far"])
def test_a_question_that_the_answer_does_not_need_ends_the_service_or_its_link(
    verified: CheatingNode, name: str
) -> None:
    """First of those who ask this node: after twelve deviations in an hour its vaults answer alone."""
    trial = run_trial(verified, BY_NAME[name], LEVEL, 0)
    assert trial is not None and trial.failed and not trial.bits
    got = verified.ask(f"{name}-1", PROMPT.format(number=0), LEVEL, BY_NAME[name].asked)
    assert not got.error and got.places == honest(verified, BY_NAME[name].asked).places


@pytest.mark.parametrize(
    "name", ["tokens", pytest.param("plausible", marks=pytest.mark.release), "logprobs", "length", "aborts"]
)
def test_whatever_a_service_does_an_answer_is_the_honest_one_to_its_end(verified: CheatingNode, name: str) -> None:
    verified.settle()
    attack, alarms = BY_NAME[name], verified.alarms()
    secret = verified.ask("victim", "What is my case?", LEVEL, 8)
    assert not secret.error
    body = attack.body if name == "logprobs" else {}
    got = verified.ask(f"{name}-1", PROMPT.format(number=0), LEVEL, attack.asked, **body)
    expected = verified.ask(BYSTANDER, PROMPT.format(number=0), LEVEL, attack.asked, **body)
    assert not got.error and (got.places, got.scores) == (expected.places, expected.scores)
    assert None not in got.places and len(got.places) == attack.asked
    assert verified.alarms() - alarms == (name != "aborts"), "the operator learns of a deviation"


@pytest.mark.parametrize("name", ["aborts", "deviations"])
def test_an_account_that_the_service_troubles_again_and_again_gets_all_its_answers(
    verified: CheatingNode, name: str
) -> None:
    trials = [run_trial(verified, BY_NAME[name], LEVEL, number) for number in range(2)]
    assert [trial and (trial.failed, trial.bits) for trial in trials] == [(False, 0)] * 2


def test_a_cached_count_is_not_the_services_to_say(verified: CheatingNode) -> None:
    assert not verified.ask("victim", "What is my case?", LEVEL, 8).error
    attack = BY_NAME["usage"]
    counts = [verified.ask(f"usage-{each}", PROMPT.format(number=0), LEVEL, attack.asked) for each in range(2)]
    assert [count.cached for count in counts] == [0, 0] and not any(count.error for count in counts)
    assert all(count.places == honest(verified, attack.asked).places for count in counts)


def test_a_deviation_is_logged_the_service_restarts_and_all_go_on(verified: CheatingNode) -> None:
    verified.settle()
    assert not verified.ask("victim", "What is my case?", LEVEL, 8).error
    alone = honest(verified, 8 * CHUNK)
    with ThreadPoolExecutor(1) as beside:
        other = beside.submit(verified.ask, BYSTANDER, PROMPT.format(number=0), LEVEL, 8 * CHUNK)
        sleep(0.5)
        told = verified.ask("deviations-1", PROMPT.format(number=0), LEVEL, 18)
        assert not other.result().error and other.result().places == alone.places
    assert told.places == alone.places[:18] and "The service deviated at token" in verified.log.read_text()


@pytest.mark.release  # a node of its own; by messages: controller/test_verification.py
def test_released_at_once_a_chunk_leaks_and_no_more(late: CheatingNode) -> None:
    trial = run_trial(late, BY_NAME["tokens"], LEVEL, 0)
    assert trial is not None and trial.failed and not trial.wrong
    assert 0 < trial.bits <= 15 * CHUNK
