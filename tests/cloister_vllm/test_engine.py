"""The contract of engines over vLLM's core, which is played here."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from cloister.compute.layout import Remote
from cloister.config import EngineSettings
from cloister.engine.base import EngineRequest
from cloister.errors import ProtocolError
from cloister.messages.generation import Accepted, Failed, Tokens
from cloister.messages.types import Partition, SamplingParams
from cloister_vllm.engine import VllmEngine
from tests.cloister_vllm.fake_core import EchoCore
from tests.engine.node import drain

PROMPT = (4, 8, 15, 16, 23)


def asked(number: int, prompt: tuple[int, ...] = PROMPT, tenant: str = "a", **params: Any) -> EngineRequest:
    return EngineRequest(number, tenant, prompt, SamplingParams(**{"max_tokens": 3, **params}))


def made(**settings: int) -> tuple[VllmEngine, EchoCore]:
    core = EchoCore()
    return VllmEngine(core, EngineSettings(**settings)), core  # type: ignore[arg-type]


def test_an_accepted_request_is_answered_to_its_end() -> None:
    engine, _ = made()
    assert not engine.has_work and engine.step() == []
    assert engine.submit(asked(1, logprobs=2)) == Accepted(1) and engine.has_work and engine.stats().waiting == 1
    answer = drain(engine)[1]
    assert (answer.tokens, answer.finish) == ([4, 8, 15], "length") and not engine.has_work
    assert answer.logprobs[0].top == ((4, -0.5), (0, -1.5))
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.prompt_tokens, stats.output_tokens) == (0, 0, 5, 3)
    assert not engine.take_failure() and not engine.meter.active


def test_an_answer_ends_with_the_context() -> None:
    engine, core = made()
    engine.submit(asked(1, tuple(range(126)), max_tokens=50))
    assert len(drain(engine)[1].tokens) == 2
    assert isinstance(engine.submit(asked(2, tuple(range(128)))), Failed) and not core.requests


def test_a_request_ends_in_any_state() -> None:
    engine, core = made(max_running=1)
    engine.submit(asked(1)), engine.submit(asked(2))
    engine.step()
    assert list(core.requests) == [1] and engine.cancel(3) is None
    assert engine.cancel(2) == Tokens(2, finish="cancelled") and engine.cancel(1) == Tokens(1, finish="cancelled")
    assert not engine.has_work and not core.requests and not engine.meter.active and engine.step() == []


def test_the_tenant_with_least_service_goes_first_whoever_came_first() -> None:
    engine, core = made(max_running=1)
    for number in range(1, 6):
        engine.submit(asked(number, tenant="many"))
    engine.step()
    engine.submit(asked(9, tenant="one"))
    drain(engine)
    assert core.order.index(9) <= 2


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"prompt": ()}, "prompt"),
        ({"prompt": (300,)}, "prompt"),
        ({"logit_bias": {300: 1.0}}, "logit_bias"),
        ({"embed": True, "max_tokens": 0}, "input"),
        ({"grammar": "x"}, "response_format"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_what_it_cannot_serve_is_refused_by_name(wrong: dict[str, Any], param: str) -> None:
    engine, core = made()
    refused = engine.submit(asked(1, **wrong))
    assert isinstance(refused, Failed) and refused.param == param and not engine.has_work and not core.order


def test_a_replayed_answer_is_refused() -> None:
    engine, _ = made()
    assert isinstance(engine.submit(EngineRequest(1, "a", PROMPT, SamplingParams(), answered=2)), Failed)


def began(number: int, link: int = 5, first: int = 7, **more: Any) -> EngineRequest:
    """An answer that a vault began."""
    params = SamplingParams(**{"max_tokens": 4, **more})
    return EngineRequest(number, "a", (), params, partitions=(Partition(link, 3, first),))


def test_an_answer_that_a_vault_began_goes_on_after_its_first_token() -> None:
    engine, core = made()
    engine.attach_link(5, 0, 1)
    engine.submit(began(1))
    assert drain(engine)[1].tokens == [7, 7, 7] and core.jobs[1].remote == Remote(5, 3)
    assert engine.stats().prompt_tokens == 0 and engine.detach_link(5) == [] and not core.links


def test_a_link_that_is_missing_or_cannot_be_mapped_fails_its_requests() -> None:
    engine, core = made()
    engine.attach_exported_link(5, 0), engine.attach_link(6, -1, -1)
    with pytest.raises(ProtocolError):
        engine.attach_link(5, 0, 1)
    failures = [engine.submit(began(number, link)) for number, link in enumerate((5, 6, 7))]
    assert all(isinstance(one, Failed) and one.code == "vault_lost" for one in failures) and not core.jobs


@pytest.mark.parametrize("wrong", ["origin", "made", "public", "several", "presence_penalty", "max_tokens", "nowhere"])
def test_what_it_cannot_continue_is_refused(wrong: str) -> None:
    """Tokens of a prompt or of another service's answer, several sequences, and what counts the first token."""
    engine, core = made()
    engine.attach_link(5, 0, 1)
    request = began(1)
    [one] = request.partitions
    core.asks_vaults = wrong != "nowhere"
    changed = {
        "origin": {"partitions": (Partition(5, 3, 7, origin=9),)},
        "made": {"made": ((1, 2),)},
        "public": {"prompt": (1, 2), "public": 2},
        "several": {"partitions": (one, Partition(5, 4, 7))},
        "presence_penalty": {"params": SamplingParams(max_tokens=4, presence_penalty=0.5)},
        "max_tokens": {"params": SamplingParams(max_tokens=1)},
        "nowhere": {},
    }[wrong]
    assert isinstance(engine.submit(replace(request, **changed)), Failed) and not core.jobs and not engine.has_work


def test_a_vault_that_fails_in_a_step_fails_its_requests_alone() -> None:
    engine, core = made()
    for link in (5, 6):
        engine.attach_link(link, 0, 1)
    engine.submit(began(1, 5)), engine.submit(began(2, 6)), engine.submit(asked(3))
    core.late = {5: "vault_timeout"}
    lost = [one for one in engine.step() if isinstance(one, Failed)]
    assert [(one.request_id, one.code) for one in lost] == [(1, "vault_lost")]
    core.late = {}
    assert isinstance(engine.submit(began(4, 5)), Failed), "it is not asked again"
    answers = drain(engine)
    assert answers[2].finish == answers[3].finish == "length" and not engine.meter.active


def test_a_vault_that_ends_takes_its_running_and_waiting_requests() -> None:
    engine, core = made(max_running=1)
    engine.attach_link(5, 0, 1)
    engine.submit(began(1)), engine.submit(began(2)), engine.step()
    assert {one.request_id for one in engine.detach_link(5)} == {1, 2}
    assert not engine.has_work and not core.requests and not engine.meter.active


def test_an_answer_waits_until_it_has_room_to_its_end() -> None:
    """64 blocks of 32 hold two answers of 1,000 tokens: a third would be preempted, and asked for twice."""
    engine, core = made()
    core.max_context = engine.max_context = 1024
    engine.attach_link(5, 0, 1)
    for number in range(3):
        engine.submit(began(number, max_tokens=1000))
    engine.step()
    assert list(core.jobs) == [0, 1]
    engine.cancel(0), engine.step()
    assert list(core.jobs) == [0, 1, 2]


def test_queues_are_bounded_for_all_and_for_one_tenant() -> None:
    engine, _ = made(max_waiting=3, max_waiting_per_tenant=2)
    kinds = [type(engine.submit(asked(number, tenant=tenant))) for number, tenant in enumerate("aaabb")]
    assert kinds == [Accepted, Accepted, Failed, Accepted, Failed]
    assert isinstance(engine.submit(asked(0)), Failed), "a number that is under way"


def test_what_vllm_refuses_fails_alone_and_without_its_words() -> None:
    engine, _ = made()
    engine.submit(asked(1, seed=13)), engine.submit(asked(2))
    answers = drain(engine)
    assert answers[2].finish == "length" and (failure := answers[1].failed) is not None
    assert "words" not in failure.message and not engine.meter.active and not engine.take_failure()


def test_a_failed_step_fails_every_request_without_its_words() -> None:
    engine, core = made(max_running=1)
    engine.submit(asked(1)), engine.submit(asked(2))
    core.breaks = True
    messages = engine.step()
    assert {one.request_id for one in messages if isinstance(one, Failed)} == {1, 2} and not engine.has_work
    assert "words" not in str([one.message for one in messages if isinstance(one, Failed)])
    assert engine.take_failure() and not engine.take_failure() and not engine.meter.active
