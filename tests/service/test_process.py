"""The service's loop over a real socket, with a runner that has no model: who may compute when, and what is said."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

from cloister.config import EngineSettings
from cloister.engine.base import EngineRequest
from cloister.engine.paged import PagedEngine
from cloister.errors import ProtocolError
from cloister.fairness import INPUT_WEIGHT, OUTPUT_WEIGHT
from cloister.messages.controller_service import (
    AttachLink,
    DetachLink,
    FromSealedService,
    Generate,
    GeneratePartitioned,
    GeneratePrompt,
    LinkSlot,
    Pause,
    Paused,
    Resume,
    WeightsMemory,
)
from cloister.messages.frames import FrameReader, encode_frame
from cloister.messages.generation import Accepted, AskStats, Cancel, Failed, Ready, Stats, Tokens
from cloister.messages.lifecycle import StartFailed
from cloister.prefix.base import PrefixCache
from cloister.prefix.radix import RadixCache
from cloister.service.process import Service, request_of
from tests.engine.fake_runner import FakeRunner
from tests.engine.node import alone, request, split, without_first

READY = Ready(32, 256, 64, 16, "fake")
PROMPT = [4, 8, 15, 16, 23, 30]


def order_of(request: EngineRequest) -> Generate:
    """The message that asks a service for this; what the service makes of it is the same request again."""
    head = request.request_id, request.tenant, request.prompt, request.params
    order: Generate
    if not request.partitions:
        order = GeneratePrompt(*head, request.public, request.salt, request.policy)
        assert request_of(order) == request
    else:
        [partition] = request.partitions
        order = GeneratePartitioned(*head, partition, request.salt)
        assert request_of(order) == msgspec.structs.replace(request, policy="partition")
    return order


class Controller:
    """Our end of the socket, and the service in a thread."""

    def __init__(
        self, runner: FakeRunner, lost: Callable[[], bool] = lambda: False, prefix: PrefixCache | None = None
    ) -> None:
        self.runner, self._lost, self._prefix = runner, lost, prefix
        self._ours, theirs = socket.socketpair()
        self._ours.settimeout(20)
        self._frames: FrameReader[msgspec.Struct] = FrameReader(FromSealedService)
        self._said: list[msgspec.Struct] = []
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, args=(theirs,), daemon=True)
        self._thread.start()
        assert self.handle() == READY

    def _serve(self, theirs: socket.socket) -> None:
        try:
            service = Service(PagedEngine(self.runner, EngineSettings(), self._prefix), READY, lost=self._lost)
            service.announce(theirs)
            service.run(theirs)
        except BaseException as error:
            self.error = error
        finally:
            theirs.close()

    def say(self, *messages: msgspec.Struct, descriptors: tuple[int, ...] = ()) -> None:
        sent = tuple(order_of(one) if isinstance(one, EngineRequest) else one for one in messages)
        socket.send_fds(self._ours, [encode_frame(sent)], descriptors)

    def say_bytes(self, data: bytes) -> None:
        self._ours.sendall(data)

    def handle(self) -> msgspec.Struct:
        """The next message."""
        while not self._said:
            data = self._ours.recv(1 << 16)
            assert data, "the service hung up"
            self._said = self._frames.feed(data)
        return self._said.pop(0)

    def hear_until(self, enough: Callable[[msgspec.Struct], bool]) -> list[msgspec.Struct]:
        heard = [self.handle()]
        while not enough(heard[-1]):
            heard.append(self.handle())
        return heard

    def steps(self) -> int:
        """How many steps there were, and none is under way."""
        self.say(AskStats())
        stats = self.hear_until(lambda message: isinstance(message, Stats))[-1]
        assert isinstance(stats, Stats)
        return stats.steps

    def hang_up(self) -> BaseException | None:
        """How the service took it."""
        self._ours.close()
        return self.join()

    def join(self) -> BaseException | None:
        self._thread.join(20)
        assert not self._thread.is_alive(), "the service goes on"
        return self.error

    def attach(self, link: int) -> None:
        question, answer = os.memfd_create("q"), os.memfd_create("a")
        self.say(AttachLink(link), descriptors=(question, answer))
        os.close(question)
        os.close(answer)


@pytest.fixture
def controller() -> Iterator[Controller]:
    controller = Controller(FakeRunner())
    yield controller
    controller.hang_up()


def is_last(message: msgspec.Struct) -> bool:
    return isinstance(message, Failed) or (isinstance(message, Tokens) and message.finish is not None)


def said(messages: list[msgspec.Struct], request_id: int) -> list[int]:
    mine = [m for m in messages if isinstance(m, Tokens) and m.request_id == request_id]
    return [token for message in mine for token in message.tokens]


def endless(number: int):
    return request(number, PROMPT, max_tokens=200)


def test_it_serves_and_ends_when_the_controller_hangs_up(controller: Controller) -> None:
    controller.say(request(1, PROMPT))
    heard = controller.hear_until(is_last)
    assert heard[0] == Accepted(1) and said(heard, 1) == alone(request(1, PROMPT)).tokens
    assert controller.hang_up() is None


def test_hanging_up_in_the_middle_of_an_answer_is_no_error(controller: Controller) -> None:
    controller.say(endless(1))
    controller.handle()
    assert controller.hang_up() is None


def test_a_pause_without_work_is_granted_at_once_and_again_after_resuming(controller: Controller) -> None:
    for _ in range(3):
        controller.say(Pause())
        assert isinstance(controller.handle(), Paused)
        controller.say(Resume())
    controller.say(Pause(), Cancel(7))
    assert isinstance(controller.handle(), Paused)


def test_paused_it_hears_and_computes_nothing(controller: Controller) -> None:
    controller.say(endless(1))
    controller.hear_until(lambda message: isinstance(message, Tokens))
    controller.say(Pause())
    controller.hear_until(lambda message: isinstance(message, Paused))
    before = controller.steps()
    controller.say(request(2, PROMPT), Cancel(1))
    assert controller.handle() == Accepted(2)
    assert controller.steps() == before
    controller.say(Resume())
    assert said(controller.hear_until(is_last), 2) == alone(request(2, PROMPT)).tokens


def test_between_a_resume_and_the_next_pause_there_is_exactly_one_step_at_least(controller: Controller) -> None:
    controller.say(Pause())
    assert isinstance(controller.handle(), Paused)
    controller.say(request(1, PROMPT, max_tokens=6))
    assert controller.handle() == Accepted(1)
    expected = alone(request(1, PROMPT, max_tokens=6)).tokens
    charged = 0
    for token in expected:
        controller.say(Resume({"a": 5, "stranger": 5}), Pause())  # both are there before the step can begin
        message, paused = controller.handle(), controller.handle()
        assert isinstance(message, Tokens) and message.tokens == (token,)
        assert isinstance(paused, Paused)
        charged += paused.charged["a"]
    assert charged == len(PROMPT) * INPUT_WEIGHT + len(expected) * OUTPUT_WEIGHT
    assert controller.steps() == len(expected)
    controller.say(Resume(), Pause())  # no work is left, so no step is owed
    assert isinstance(controller.handle(), Paused) and controller.steps() == len(expected)


def test_a_vault_that_waits_for_cores_does_not_wait_for_answers_to_be_kept() -> None:
    controller = Controller(FakeRunner(), prefix=RadixCache())
    controller.say(Pause())
    assert isinstance(controller.handle(), Paused)
    controller.say(request(1, PROMPT, max_tokens=40))
    assert controller.handle() == Accepted(1)
    for _ in range(40):
        controller.say(Resume(), Pause())
        controller.hear_until(lambda message: isinstance(message, Paused))
    controller.say(Resume(), Pause())
    assert isinstance(controller.handle(), Paused) and controller.steps() == 40, "nobody's request needs a step"
    controller.say(Resume())
    end = time.monotonic() + 20
    while controller.steps() == 40:
        assert time.monotonic() < end, "with the cores to itself it keeps the answer"
    controller.hang_up()


def test_a_link_comes_with_two_descriptors_that_are_closed_once_mapped(controller: Controller) -> None:
    before = len(os.listdir("/proc/self/fd"))
    controller.attach(3)
    controller.steps()
    assert set(controller.runner.attached) == {3} and len(os.listdir("/proc/self/fd")) == before


def test_a_partition_is_served_and_lost_with_its_link(controller: Controller) -> None:
    whole = request(1, PROMPT, max_tokens=20)
    parted = split(whole, controller.runner, public=2, link=3)
    controller.say(parted)
    refused = controller.handle()
    assert isinstance(refused, Failed) and refused.code == "vault_lost"
    controller.attach(3)
    controller.say(parted)
    assert said(controller.hear_until(is_last), 1) == without_first(alone(whole)).tokens
    controller.say(Pause())
    assert isinstance(controller.handle(), Paused)
    lasting = msgspec.structs.replace(parted, params=msgspec.structs.replace(parted.params, max_tokens=200))
    controller.say(lasting, endless(2), Resume(), Pause())
    controller.hear_until(lambda message: isinstance(message, Paused))
    controller.say(DetachLink(3))
    lost = controller.handle()
    assert isinstance(lost, Failed) and lost.request_id == 1 and lost.code == "vault_lost"
    assert not controller.runner.attached
    controller.say(Resume())
    assert all(isinstance(m, Tokens) and m.request_id == 2 for m in controller.hear_until(is_last))


class Slots(FakeRunner):
    """Links are at slots that it made."""

    def __init__(self) -> None:
        super().__init__()
        self.attached: dict[int, int] = {}

    def export(self) -> list[int]:
        return [os.memfd_create(name) for name in ("first", "second")]

    def attach_slot(self, link: int, slot: int) -> None:
        self.attached[link] = slot


def test_places_for_links_are_sent_before_all_else_and_a_link_is_attached_to_one() -> None:
    before = len(os.listdir("/proc/self/fd"))
    ours, theirs = socket.socketpair()
    runner = Slots()
    weights = os.memfd_create("weights")
    Service(PagedEngine(runner, EngineSettings()), READY, weights=weights).announce(theirs)
    found, descriptors = [], []
    for _ in range(3):
        data, fds, _, _ = socket.recv_fds(ours, 1 << 16, 4)
        found += FrameReader(FromSealedService).feed(data)
        descriptors += fds
    assert found == [WeightsMemory(), LinkSlot(0), LinkSlot(1)]
    names = [os.readlink(f"/proc/self/fd/{fd}").split(":")[1].split()[0] for fd in descriptors]
    assert names == ["weights", "first", "second"]
    for fd in (*descriptors, ours.detach(), theirs.detach()):
        os.close(fd)
    assert len(os.listdir("/proc/self/fd")) == before
    engine = PagedEngine(runner, EngineSettings())
    engine.attach_exported_link(5, 1)
    assert runner.attached == {5: 1}
    with pytest.raises(ProtocolError):
        engine.attach_exported_link(5, 0)


@pytest.mark.parametrize("lost", [False, True])
def test_it_ends_with_its_device_and_survives_any_other_failure(lost: bool) -> None:
    controller = Controller(FakeRunner(), lambda: lost)
    controller.runner.fail_next = RuntimeError("something of the device's")
    controller.say(endless(1))
    heard = controller.hear_until(is_last)
    assert isinstance(heard[-1], Failed) and heard[-1].request_id == 1
    if lost:
        assert controller.join() is None
    else:
        controller.say(request(2, PROMPT, max_tokens=3))
        assert said(controller.hear_until(is_last), 2)
    controller.hang_up()


def test_a_cancel_is_done_with_before_the_totals_asked_for_after_it(controller: Controller) -> None:
    controller.say(endless(1))
    controller.hear_until(lambda message: isinstance(message, Tokens))
    controller.say(Cancel(1), AskStats())
    stats = controller.hear_until(lambda message: isinstance(message, Stats))[-1]
    assert isinstance(stats, Stats) and stats.running == 0 and stats.blocks_free == stats.blocks_total


@pytest.mark.parametrize(
    "messages",
    [
        (Resume(),),
        (Pause(), Pause()),
        (AttachLink(1),),
        (StartFailed("a", "b"),),
    ],
    ids=str,
)
def test_a_message_out_of_turn_ends_it(controller: Controller, messages: tuple[msgspec.Struct, ...]) -> None:
    controller.say(*messages)
    assert isinstance(controller.join(), ProtocolError)


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\x03\0\0\0abc", encode_frame((Accepted(1),))])
def test_a_malformed_frame_ends_it(controller: Controller, data: bytes) -> None:
    controller.say_bytes(data)
    assert isinstance(controller.join(), ProtocolError)


def test_the_same_link_twice_ends_it(controller: Controller) -> None:
    controller.attach(1)
    controller.attach(1)
    assert isinstance(controller.join(), ProtocolError)


def test_nothing_is_printed_whatever_happens(capfd: pytest.CaptureFixture[str]) -> None:
    controller = Controller(FakeRunner())
    controller.say(request(1, [999]), request(2, PROMPT))
    controller.hear_until(lambda message: isinstance(message, Tokens) and message.finish is not None)
    controller.say_bytes(b"\x03\0\0\0abc")
    controller.join()
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_many_long_scores_at_once_do_not_end_it(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    """Together they are longer than a frame may be (here: than a small one)."""
    monkeypatch.setattr("cloister.messages.frames.MAX_FRAME_BYTES", 4096)
    controller.say(Pause())
    assert isinstance(controller.handle(), Paused)
    for number in range(1, 9):
        controller.say(request(number, PROMPT * 8, max_tokens=0, prompt_logprobs=4))
    controller.say(Resume())
    ended = set()
    while len(ended) < 8:
        message = controller.handle()
        if isinstance(message, Tokens) and message.finish:
            assert message.prompt_logprobs is not None and len(message.prompt_logprobs) == 47
            ended.add(message.request_id)
    assert controller.error is None
