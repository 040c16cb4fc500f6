"""The gateway's end of the socket, with the controller's played by the test."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from cloister.backend.base import OpenJob, VaultJob
from cloister.backend.client import ControllerClient
from cloister.errors import PromptTooLong, QueueFull, ServiceUnavailable, VaultLost
from cloister.messages.controller_frontend import (
    AdmitKeys,
    Ask,
    AskView,
    EndSession,
    KeyEntry,
    Serving,
    StartFrontend,
    SubmitTokens,
    View,
)
from cloister.messages.controller_gateway import FromGateway
from cloister.messages.generation import Accepted, AskStats, Cancel, Failed, Stats, Tokens
from cloister.messages.types import SamplingParams
from tests.controller.fakes import SERVING, Peer

PARAMS = SamplingParams(max_tokens=4)
PRIVATE = VaultJob("partitioned", "session", True, b"prompt", "team")


class Played:
    def __init__(self, client: ControllerClient, controller: Peer) -> None:
        self.client = client
        self.controller = controller


@pytest.fixture
async def played() -> AsyncIterator[Played]:
    ours, theirs = socket.socketpair()
    controller = Peer(theirs, FromGateway)
    client = await ControllerClient.connect(ours)
    controller.say(StartFrontend(b"{}", "m", "/m", 1), SERVING)
    await client.serving
    yield Played(client, controller)
    await client.close()
    controller.die()


async def test_keys_that_change_are_passed_on(played: Played) -> None:
    told: asyncio.Future[tuple[KeyEntry, ...]] = asyncio.get_running_loop().create_future()
    played.client.when_keys_change(told.set_result)
    entry = KeyEntry(bytes(32), "ann", "lab", operator=True)
    played.controller.say(AdmitKeys((entry,)))
    assert await told == (entry,)


async def test_what_is_served_is_known_before_anything_else(played: Played) -> None:
    assert (await played.client.started).name == "m"
    assert isinstance(played.client.ready, Serving) and "partitioned" in played.client.ready.levels


async def test_jobs_become_the_messages_of_their_level(played: Played) -> None:
    opened = asyncio.create_task(played.client.generate("ann", OpenJob((1, 2, 3), public=2), PARAMS))
    submit = await played.controller.next(SubmitTokens)
    assert (submit.tenant, submit.prompt, submit.public) == ("ann", (1, 2, 3), 2)
    played.controller.say(Accepted(submit.request_id))
    stream = await opened
    assert stream.prompt_tokens == 3 and stream.request_id == submit.request_id

    confided = asyncio.create_task(played.client.generate("ann", PRIVATE, PARAMS))
    ask = await played.controller.next(Ask)
    assert (ask.level, ask.session, ask.keep, ask.prompt, ask.group) == (
        "partitioned",
        "session",
        True,
        b"prompt",
        "team",
    )
    played.controller.say(Accepted(ask.request_id, 17), Tokens(ask.request_id, (4,), finish="stop"))
    stream = await confided
    assert stream.prompt_tokens == 17
    assert [part.tokens async for part in stream] == [(4,)]


async def test_a_prompt_for_many_answers_is_sent_once(played: Played) -> None:
    """Three MiB times a hundred and twenty-eight would be copied four times on their way to a vault."""
    job = VaultJob("partitioned", "session", False, b"x" * (3 << 20))
    wanted = [SamplingParams(max_tokens=4, seed=seed) for seed in range(128)]
    begun = asyncio.create_task(played.client.generate_all("ann", job, wanted))
    ask = await played.controller.next(Ask)
    ids = [ask.request_id, *(each.request_id for each in ask.also)]
    assert ask.prompt == job.prompt and len(set(ids)) == 128
    assert [ask.params.seed, *(each.seed for each in ask.also)] == list(range(128))
    played.controller.say(*(Accepted(one, 9) for one in ids))
    streams = await begun
    assert [stream.request_id for stream in streams] == ids and not played.controller.messages
    for stream in streams:
        await stream.aclose()
    assert {(await played.controller.next(Cancel)).request_id for _ in ids} == set(ids)


async def test_if_one_answer_is_refused_none_is_begun(played: Played) -> None:
    begun = asyncio.create_task(played.client.generate_all("ann", PRIVATE, [PARAMS, PARAMS, PARAMS]))
    ask = await played.controller.next(Ask)
    first, second = ask.also
    played.controller.say(Accepted(ask.request_id, 9), Failed(first.request_id, "queue_full", "full"))
    with pytest.raises(QueueFull):
        await begun
    cancelled = {(await played.controller.next(Cancel)).request_id for _ in range(2)}
    assert cancelled == {ask.request_id, second.request_id}


async def test_refusals_that_come_together_leave_nothing_for_the_log(
    played: Played, caplog: pytest.LogCaptureFixture
) -> None:
    begun = asyncio.create_task(played.client.generate_all("ann", PRIVATE, [PARAMS, PARAMS, PARAMS]))
    ask = await played.controller.next(Ask)
    played.controller.say(
        *(Failed(one, "queue_full", "full") for one in (ask.request_id, *(a.request_id for a in ask.also)))
    )
    with pytest.raises(QueueFull):
        await begun
    del begun
    gc.collect()
    await asyncio.sleep(0)
    assert not caplog.records


async def test_waiting_messages_are_read_as_one(played: Played) -> None:
    going = asyncio.create_task(played.client.generate("ann", OpenJob((1,)), PARAMS))
    number = (await played.controller.next(SubmitTokens)).request_id
    played.controller.say(Accepted(number), *(Tokens(number, (token,)) for token in range(3)))
    played.controller.say(Tokens(number, (3,), finish="length"))
    stream = await going
    await asyncio.sleep(0.05)
    assert await anext(stream) == Tokens(number, (0, 1, 2, 3), finish="length")
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_refusals_and_failures_keep_their_type(played: Played) -> None:
    for failed, kind in (
        (Failed(0, "context_length_exceeded", "Too long."), PromptTooLong),
        (Failed(0, "queue_full", "Full.", 7), QueueFull),
        (Failed(0, "vault_lost", "Lost."), VaultLost),
    ):
        going = asyncio.create_task(played.client.generate("ann", PRIVATE, PARAMS))
        number = (await played.controller.next(Ask)).request_id
        played.controller.say(Failed(number, failed.code, failed.message, failed.retry_after))
        with pytest.raises(kind) as raised:
            await going
        assert getattr(raised.value, "retry_after", 7) == 7
    going = asyncio.create_task(played.client.generate("ann", PRIVATE, PARAMS))
    number = (await played.controller.next(Ask)).request_id
    played.controller.say(Accepted(number, 1), Tokens(number, (1,)), Failed(number, "vault_lost", "Lost."))
    stream = await going
    assert (await anext(stream)).tokens == (1,)
    with pytest.raises(VaultLost):
        await anext(stream)
    await stream.aclose()
    assert not played.controller.messages  # nothing to cancel: it had ended


async def test_leaving_cancels_before_and_after_it_was_accepted(played: Played) -> None:
    waiting = asyncio.create_task(played.client.generate("ann", PRIVATE, PARAMS))
    number = (await played.controller.next(Ask)).request_id
    waiting.cancel()
    assert (await played.controller.next(Cancel)).request_id == number
    going = asyncio.create_task(played.client.generate("ann", PRIVATE, PARAMS))
    number = (await played.controller.next(Ask)).request_id
    played.controller.say(Accepted(number, 1))
    await (await going).aclose()
    assert (await played.controller.next(Cancel)).request_id == number


async def test_stats_views_and_sessions(played: Played) -> None:
    stats = asyncio.create_task(played.client.stats())
    await played.controller.next(AskStats)
    played.controller.say(Stats(running=3, vaults=2))
    assert (await stats).vaults == 2
    away = asyncio.create_task(played.client.stats())
    await played.controller.next(AskStats)
    played.controller.say(Stats(up=False))
    with pytest.raises(ServiceUnavailable):
        await away
    views = [asyncio.create_task(played.client.view(number)) for number in (5, 6)]
    assert [(await played.controller.next(AskView)).request_id for _ in views] == [5, 6]
    played.controller.say(View(6, True, asked_rows=6), View(5, False))
    assert [(await view).asked_rows for view in views] == [0, 6]
    await played.client.end_session("ann", "session", "team")
    assert await played.controller.next(EndSession) == EndSession("ann", "session", "team")


async def test_when_the_controller_goes_everything_ends(played: Played) -> None:
    gone = asyncio.Event()
    played.client.when_gone(gone.set)
    going = asyncio.create_task(played.client.generate("ann", PRIVATE, PARAMS))
    number = (await played.controller.next(Ask)).request_id
    played.controller.say(Accepted(number, 1))
    stream = await going
    waiting = asyncio.create_task(played.client.stats())
    await played.controller.next(AskStats)
    played.controller.die()
    await asyncio.wait_for(gone.wait(), 5)
    for awaitable in (anext(stream), waiting, played.client.generate("ann", PRIVATE, PARAMS)):
        with pytest.raises(ServiceUnavailable):
            await awaitable


async def test_answers_to_one_prompt_wait_for_one_reading_of_it(played: Played) -> None:
    job = OpenJob((1, 2), level="shared", text="text", ends=(4,))
    asking = asyncio.create_task(played.client.generate_all("ann", job, [PARAMS] * 3))
    submit = await played.controller.next(SubmitTokens)
    assert len({submit.request_id, *(each.request_id for each in submit.also)}) == 3
    assert (submit.text, submit.ends) == ("text", (4,))
    asking.cancel()


async def test_only_where_tenants_share_do_first_tokens_wait_for_the_grid(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantised = replace(SERVING, quantised={"open": 60_000})
    monkeypatch.setattr(ControllerClient, "ready", property(lambda client: quantised))
    opened = asyncio.create_task(played.client.generate("ann", OpenJob((1, 2, 3)), PARAMS))
    shared = asyncio.create_task(played.client.generate("ann", OpenJob((1, 2, 3), level="shared"), PARAMS))
    streams = []
    for asked in (opened, shared):
        submit = await played.controller.next(SubmitTokens)
        played.controller.say(Accepted(submit.request_id), Tokens(submit.request_id, (7,)))
        streams.append(await asked)
    assert (await anext(streams[1])).tokens == (7,)
    first = asyncio.ensure_future(anext(streams[0]))
    await asyncio.sleep(0.05)
    assert not first.done(), "it leaves a minute after the request came"
    first.cancel()
