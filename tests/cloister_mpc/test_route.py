"""Requests at `mpc` through the relay, with the client played by the test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from cloister.errors import ProtocolError, StartingUp
from cloister.messages.controller_frontend import Ask, SubmitTokens
from cloister.messages.controller_sealed_api import AskSealed
from cloister.messages.controller_service import Generate
from cloister.messages.controller_vault import AssignPrompt, FirstToken, Prefilled, PromptAccepted
from cloister.messages.generation import Accepted, AskStats, Cancel, Failed, Progress, Stats, Tokens
from cloister.messages.prompts import LockedPrompt, SealedPrompt
from cloister.messages.types import SamplingParams
from cloister_mpc.client_keeper import MpcRoute
from cloister_mpc.level import MpcLevel
from tests.controller.fakes import VOCABULARY, Inbox, Node

PARAMS = SamplingParams(max_tokens=8)
PROGRESS = Progress(1, 3, 30, 2.5)


class FakeMpcClient(Inbox):
    """Keeps what it is given, or says that it is not up."""

    up = True

    def assign(self, prompt: AssignPrompt) -> None:
        if not self.up:
            raise StartingUp("The parties are being dealt the model.", retry_after=40)
        self.put(prompt)

    def send(self, message: msgspec.Struct) -> None:
        self.put(message)


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    node = await Node.build(spare_vaults=0)
    yield node
    node.close()


def offered(node: Node) -> FakeMpcClient:
    client = FakeMpcClient()
    node.relay.add_level(MpcLevel())
    route_of(node).client = client
    return client


def route_of(node: Node) -> MpcRoute:
    route = node.relay.routes["mpc"]
    assert isinstance(route, MpcRoute)
    return route


@pytest.fixture
def client(node: Node) -> FakeMpcClient:
    return offered(node)


async def confided(node: Node, client: FakeMpcClient, request_id: int = 5) -> AssignPrompt:
    node.ask(request_id, level="mpc")
    return await client.next(AssignPrompt)


async def test_a_request_goes_to_the_mpc_client_and_to_nobody_else(node: Node, client: FakeMpcClient) -> None:
    asked = await confided(node, client)
    assert asked.prompt == b"prompt" and asked.level == "mpc"
    route_of(node).handle(PromptAccepted(asked.request_id, 3))
    route_of(node).handle(Tokens(asked.request_id, progress=PROGRESS))
    route_of(node).handle(Tokens(asked.request_id, (4,), finish="stop"))
    assert await node.frontend.next(Accepted) == Accepted(5, 3)
    assert await node.frontend.next(Tokens) == Tokens(5, progress=PROGRESS)
    assert await node.frontend.next(Tokens) == Tokens(5, (4,), finish="stop")
    assert not node.forkserver.vaults and not node.service.messages
    assert not node.relay.requests.held_by("mpc")
    node.send(AskStats())
    stats = await node.frontend.next(Stats)
    assert stats.prompt_tokens == 3 and stats.output_tokens == 1


async def test_a_sealed_prompt_reaches_the_mpc_client_with_its_key() -> None:
    locked = LockedPrompt(b"sealed", bytearray(32), bytes(32), 0, "messages")
    node = await Node.build(lambda prompt, owner: locked, spare_vaults=0)
    client = offered(node)
    ask = Ask(5, "ann", "mpc", "s", False, b"", PARAMS)
    node.send(AskSealed(ask, SealedPrompt(1, 0, "messages")))
    assert (await client.next(AssignPrompt)).prompt is locked
    node.close()


@pytest.mark.parametrize("installed", [False, True])
async def test_without_an_mpc_client_the_level_is_refused(node: Node, installed: bool) -> None:
    if installed:
        node.relay.add_level(MpcLevel())
    node.ask(5, level="mpc")
    assert (await node.failure()).code == "protection_unavailable"


async def test_an_mpc_client_that_is_not_up_says_when_to_come_back(node: Node, client: FakeMpcClient) -> None:
    client.up = False
    node.ask(5, level="mpc")
    failure = await node.failure()
    assert (failure.code, failure.retry_after) == ("starting_up", 40)
    assert not list(node.relay.requests)


async def test_cancelled(node: Node, client: FakeMpcClient) -> None:
    asked = await confided(node, client)
    node.send(Cancel(5))
    assert (await client.next(Cancel)).request_id == asked.request_id
    route_of(node).handle(PromptAccepted(asked.request_id, 3))  # was on its way
    assert not node.frontend.messages


async def test_a_front_that_goes_takes_its_requests_along(node: Node, client: FakeMpcClient) -> None:
    asked = await confided(node, client)
    node.relay.remove_frontend(node.gateway)
    assert (await client.next(Cancel)).request_id == asked.request_id
    assert not node.relay.requests.held_by("mpc")


async def test_a_dead_mpc_client_fails_its_requests_and_no_others(node: Node, client: FakeMpcClient) -> None:
    for request_id in (1, 2):
        await confided(node, client, request_id)
    node.send(SubmitTokens(3, "ann", (1,), PARAMS))
    route_of(node).client_gone()
    failures = [await node.failure(), await node.failure()]
    assert {(failure.request_id, failure.code) for failure in failures} == {(1, "vault_lost"), (2, "vault_lost")}
    assert (await node.service.next(Generate)).prompt == (1,)


async def test_a_dead_service_is_not_the_mpc_clients_affair(node: Node, client: FakeMpcClient) -> None:
    asked = await confided(node, client)
    node.relay.service_gone()
    route_of(node).handle(PromptAccepted(asked.request_id, 3))
    assert isinstance(node.frontend.messages[0], Accepted)


@pytest.mark.parametrize("accepted", [False, True])
async def test_what_the_mpc_client_must_not_say(node: Node, client: FakeMpcClient, accepted: bool) -> None:
    asked = await confided(node, client)
    if accepted:
        route_of(node).handle(PromptAccepted(asked.request_id, 3))
        lies = [PromptAccepted(asked.request_id, 3), Tokens(asked.request_id, (VOCABULARY,))]
    else:
        lies = [Tokens(asked.request_id, (1,)), Prefilled(asked.request_id, (FirstToken(1, 0),), 8), Stats()]
    for lie in lies:
        with pytest.raises(ProtocolError):
            route_of(node).handle(lie)


async def test_the_mpc_client_speaks_of_its_own_requests_only(node: Node, client: FakeMpcClient) -> None:
    node.send(SubmitTokens(3, "ann", (1,), PARAMS))
    submitted = await node.service.next(Generate)
    route_of(node).handle(Failed(submitted.request_id, "internal_error", "no"))
    route_of(node).handle(Tokens(submitted.request_id, (1,)))
    assert not node.frontend.messages


async def test_only_the_mpc_client_tells_of_progress(node: Node, client: FakeMpcClient) -> None:
    node.send(SubmitTokens(3, "ann", (1,), PARAMS))
    submitted = await node.service.next(Generate)
    node.service.say(Accepted(submitted.request_id), Tokens(submitted.request_id, (1,), progress=PROGRESS))
    failure = await node.failure()
    assert failure.code == "service_unavailable"


async def test_a_request_id_that_is_under_way_is_out_of_turn(node: Node, client: FakeMpcClient) -> None:
    await confided(node, client)
    for message in (Ask(5, "ann", "isolated", "s", False, b"", PARAMS), SubmitTokens(5, "ann", (1,), PARAMS)):
        with pytest.raises(ProtocolError):
            node.send(message)
