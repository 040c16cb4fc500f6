"""Requests at `mpc` through the relay, with the clerk played by the test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from cloister.errors import ProtocolError, StartingUp
from cloister.messages.frontend import Ask
from cloister.messages.generation import (
    Accepted,
    AskStats,
    Cancel,
    Failed,
    Progress,
    SamplingParams,
    Stats,
    Submit,
    Tokens,
)
from cloister.messages.prompts import LockedPrompt, SealedPrompt
from cloister.messages.sealed_api import AskSealed
from cloister.messages.vault import Confide, FirstToken, Prefilled, Understood
from tests.controller.fakes import VOCABULARY, House, Inbox

PARAMS = SamplingParams(max_tokens=8)
PROGRESS = Progress(1, 3, 30, 2.5)


class FakeClerk(Inbox):
    """Keeps what it is given, or says that it is not up."""

    up = True

    def confide(self, confided: Confide) -> None:
        if not self.up:
            raise StartingUp("The parties are being dealt the model.", retry_after=40)
        self.put(confided)

    def send(self, message: msgspec.Struct) -> None:
        self.put(message)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = await House.build(spare_vaults=0)
    yield house
    house.close()


@pytest.fixture
def clerk(house: House) -> FakeClerk:
    clerk = FakeClerk()
    house.relay.mpc.open(clerk)
    return clerk


async def confided(house: House, clerk: FakeClerk, request_id: int = 5) -> Confide:
    house.ask(request_id, level="mpc")
    return await clerk.next(Confide)


async def test_a_request_goes_to_the_clerk_and_to_nobody_else(house: House, clerk: FakeClerk) -> None:
    asked = await confided(house, clerk)
    assert asked.prompt == b"prompt" and asked.level == "mpc"
    house.relay.mpc.hear(Understood(asked.request_id, 3))
    house.relay.mpc.hear(Tokens(asked.request_id, progress=PROGRESS))
    house.relay.mpc.hear(Tokens(asked.request_id, (4,), finish="stop"))
    assert await house.frontend.next(Accepted) == Accepted(5, 3)
    assert await house.frontend.next(Tokens) == Tokens(5, progress=PROGRESS)
    assert await house.frontend.next(Tokens) == Tokens(5, (4,), finish="stop")
    assert not house.forkserver.vaults and not house.service.messages
    assert not house.relay.requests.held_by("mpc")
    house.send(AskStats())
    stats = await house.frontend.next(Stats)
    assert stats.prompt_tokens == 13 and stats.output_tokens == 21


async def test_a_sealed_prompt_reaches_the_clerk_with_its_key() -> None:
    locked = LockedPrompt(b"sealed", bytearray(32), bytes(32), 0, "messages")
    house = await House.build(lambda prompt: locked, spare_vaults=0)
    clerk = FakeClerk()
    house.relay.mpc.open(clerk)
    ask = Ask(5, "ann", "mpc", "s", False, b"", PARAMS)
    house.send(AskSealed(ask, SealedPrompt(1, 0, "messages")))
    assert (await clerk.next(Confide)).prompt is locked
    house.close()


async def test_without_a_clerk_the_level_is_refused(house: House) -> None:
    house.ask(5, level="mpc")
    assert (await house.failure()).code == "protection_unavailable"


async def test_a_clerk_that_is_not_up_says_when_to_come_back(house: House, clerk: FakeClerk) -> None:
    clerk.up = False
    house.ask(5, level="mpc")
    failure = await house.failure()
    assert (failure.code, failure.retry_after) == ("starting_up", 40)
    assert not list(house.relay.requests)


async def test_cancelled(house: House, clerk: FakeClerk) -> None:
    asked = await confided(house, clerk)
    house.send(Cancel(5))
    assert (await clerk.next(Cancel)).request_id == asked.request_id
    house.relay.mpc.hear(Understood(asked.request_id, 3))  # was on its way
    assert not house.frontend.messages


async def test_a_front_that_goes_takes_its_requests_along(house: House, clerk: FakeClerk) -> None:
    asked = await confided(house, clerk)
    house.relay.remove_frontend(house.gateway)
    assert (await clerk.next(Cancel)).request_id == asked.request_id
    assert not house.relay.requests.held_by("mpc")


async def test_a_dead_clerk_fails_its_requests_and_no_others(house: House, clerk: FakeClerk) -> None:
    for request_id in (1, 2):
        await confided(house, clerk, request_id)
    house.send(Submit(3, "ann", (1,), PARAMS))
    house.relay.mpc.clerk_gone()
    failures = [await house.failure(), await house.failure()]
    assert {(failure.request_id, failure.code) for failure in failures} == {(1, "vault_lost"), (2, "vault_lost")}
    assert (await house.service.next(Submit)).prompt == (1,)


async def test_a_dead_service_is_not_the_clerks_affair(house: House, clerk: FakeClerk) -> None:
    asked = await confided(house, clerk)
    house.relay.service_gone()
    house.relay.mpc.hear(Understood(asked.request_id, 3))
    assert isinstance(house.frontend.messages[0], Accepted)


@pytest.mark.parametrize("accepted", [False, True])
async def test_what_the_clerk_must_not_say(house: House, clerk: FakeClerk, accepted: bool) -> None:
    asked = await confided(house, clerk)
    if accepted:
        house.relay.mpc.hear(Understood(asked.request_id, 3))
        lies = [Understood(asked.request_id, 3), Tokens(asked.request_id, (VOCABULARY,))]
    else:
        lies = [Tokens(asked.request_id, (1,)), Prefilled(asked.request_id, (FirstToken(1, 0),), 8), Stats()]
    for lie in lies:
        with pytest.raises(ProtocolError):
            house.relay.mpc.hear(lie)


async def test_the_clerk_speaks_of_its_own_requests_only(house: House, clerk: FakeClerk) -> None:
    house.send(Submit(3, "ann", (1,), PARAMS))
    submitted = await house.service.next(Submit)
    house.relay.mpc.hear(Failed(submitted.request_id, "internal_error", "no"))
    house.relay.mpc.hear(Tokens(submitted.request_id, (1,)))
    assert not house.frontend.messages


async def test_only_the_clerk_tells_of_progress(house: House, clerk: FakeClerk) -> None:
    house.send(Submit(3, "ann", (1,), PARAMS))
    submitted = await house.service.next(Submit)
    house.service.say(Tokens(submitted.request_id, (1,), progress=PROGRESS))
    failure = await house.failure()
    assert failure.code == "service_unavailable"


async def test_a_request_id_that_is_under_way_is_out_of_turn(house: House, clerk: FakeClerk) -> None:
    await confided(house, clerk)
    for message in (Ask(5, "ann", "isolated", "s", False, b"", PARAMS), Submit(5, "ann", (1,), PARAMS)):
        with pytest.raises(ProtocolError):
            house.send(message)
