"""What the service process relies on, for every engine (cloister.engine.base)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import msgspec
import pytest

from cloister.engine.base import Engine, EngineRequest
from cloister.errors import ProtocolError
from cloister.messages.controller_service import FromSealedService, GeneratePrompt
from cloister.messages.frames import FrameReader, encode_frame
from cloister.messages.generation import Accepted, AskStats, Failed, Ready, Stats, Tokens
from cloister.messages.types import Partition, SamplingParams
from cloister.service.process import Service
from tests.engine.fake_engine import EchoEngine
from tests.engine.fake_runner import FakeRunner
from tests.engine.node import drain, make_engine, request

PROMPT = [4, 8, 15, 16, 23]


def paged() -> Engine:
    runner = FakeRunner()
    for slot in range(2):
        runner.vaults[(0, slot)] = list(PROMPT)
    return make_engine(runner)


@pytest.fixture(params=[paged, EchoEngine], ids=["paged", "echo"])
def engine(request: pytest.FixtureRequest) -> Engine:
    make: Callable[[], Engine] = request.param
    return make()


def partitioned(number: int, link: int) -> EngineRequest:
    partition = Partition(link, 0, PROMPT[0], len(PROMPT), 0)
    return msgspec.structs.replace(request(number, ()), prompt=(), partitions=(partition,))


def test_an_accepted_request_is_answered_to_its_end(engine: Engine) -> None:
    assert not engine.has_work and engine.step() == []
    assert engine.submit(request(1, PROMPT, max_tokens=3)) == Accepted(1) and engine.has_work
    answer = drain(engine)[1]
    assert len(answer.tokens) == 3 and answer.finish == "length" and not engine.has_work
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.output_tokens) == (0, 0, 3) and stats.steps >= 3
    assert not engine.take_failure()


@pytest.mark.parametrize("prompt", [[], [1] * 300], ids=["empty", "too long"])
def test_a_request_that_cannot_be_served_is_refused_at_once(engine: Engine, prompt: list[int]) -> None:
    assert engine.max_context < 300
    assert isinstance(engine.submit(request(1, prompt)), Failed) and not engine.has_work


def test_a_number_that_is_under_way_is_refused_and_the_first_request_goes_on(engine: Engine) -> None:
    engine.submit(request(1, PROMPT, max_tokens=2))
    assert isinstance(engine.submit(request(1, PROMPT)), Failed)
    assert len(drain(engine)[1].tokens) == 2
    assert engine.submit(request(1, PROMPT)) == Accepted(1), "a number is free again after its end"


def test_a_request_is_cancelled_once_and_nothing_follows(engine: Engine) -> None:
    for number in (1, 2):
        engine.submit(request(number, PROMPT, max_tokens=3))
    engine.step()
    assert engine.cancel(1) == Tokens(1, finish="cancelled") and engine.cancel(1) is None and engine.cancel(9) is None
    assert set(drain(engine)) == {2}


def test_tenants_are_charged_for_what_they_are_served(engine: Engine) -> None:
    engine.submit(request(1, PROMPT, "a", max_tokens=2))
    engine.submit(request(2, PROMPT, "b", max_tokens=5))
    drain(engine)
    charged = engine.meter.drain(10)
    assert set(charged) == {"a", "b"} and charged["a"] < charged["b"]


def test_requests_over_a_link_need_it(engine: Engine) -> None:
    assert engine.export_links() == []
    assert isinstance(engine.submit(partitioned(1, link=0)), Failed), "not attached yet"
    engine.attach_link(0, 10, 11)
    with pytest.raises(ProtocolError):
        engine.attach_link(0, 10, 11)
    assert engine.submit(partitioned(2, link=0)) == Accepted(2)
    engine.submit(request(3, PROMPT))
    assert [message.request_id for message in engine.detach_link(0)] == [2] and engine.detach_link(0) == []
    assert set(drain(engine)) == {3}, "other requests go on"
    assert isinstance(engine.submit(partitioned(4, link=0)), Failed)


def test_labels_and_forgotten_tenants_leave_running_requests_alone(engine: Engine) -> None:
    engine.submit(request(1, PROMPT, "a", max_tokens=3))
    engine.label(1, 2)
    engine.label(77, 2)
    engine.step()
    engine.forget("a")
    engine.forget("unknown")
    assert drain(engine)[1].finish == "length"


def test_the_service_serves_over_any_engine(engine: Engine) -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(20)
    service = Service(engine, Ready(32, engine.max_context, 64, 16, "fake"))
    thread = threading.Thread(target=service.run, args=(theirs,), daemon=True)
    thread.start()
    frames: FrameReader[msgspec.Struct] = FrameReader(FromSealedService)
    ours.sendall(encode_frame((GeneratePrompt(1, "a", tuple(PROMPT), SamplingParams(max_tokens=3)), AskStats())))
    received: list[msgspec.Struct] = []
    while not any(isinstance(message, Tokens) and message.finish for message in received):
        received += frames.feed(ours.recv(1 << 16))
    ours.close()
    thread.join(20)
    theirs.close()
    assert not thread.is_alive() and isinstance(received[0], Ready) and Accepted(1) in received
    assert sum(len(message.tokens) for message in received if isinstance(message, Tokens)) == 3
    assert any(isinstance(message, Stats) for message in received)
