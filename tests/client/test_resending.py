"""One call is one secret, however often it is sent; and nobody on the way has it sent again by a word in the clear."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import openai
import pytest

from cloister import AsyncClient, Client
from cloister.attest.policy import Policy
from cloister.channel.sealing import ChannelKey
from cloister.checks import Examination
from cloister.client.message import SealedMessage, seal_message
from cloister.client.sealed_transport import check_denial
from cloister.client.verification import Verification
from cloister.client.winnow import IndexSecrets
from cloister.errors import ChannelBroken, ChannelKeyUnknown, CloisterError, MessageExpired
from cloister.obfuscation.index import new_secret
from tests.client.fake_node import KEY, MODEL, FakeNode
from tests.client.http_server import Received, Reply, reply
from tests.client.local_proxy import proxy_to
from tests.client.middle import Next, standing_between
from tests.client.test_middle import tricks, whole

POLICY = Policy(allow_software_tee=True)
MESSAGES: Any = [{"role": "user", "content": "I am <redacted>Ann Lee</redacted>."}]
HIDDEN = {"protection": "obfuscated", "obfuscation": {"fakes": 3}}


def ask(client: Any, **body: Any) -> Any:
    return client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body=body or HIDDEN)


def by_client(url: str) -> None:
    with Client(url, api_key=KEY, policy=POLICY, timeout=30) as client:
        ask(client)


def by_async_client(url: str) -> None:
    async def asked() -> None:
        async with AsyncClient(url, api_key=KEY, policy=POLICY, timeout=30) as client:
            await ask(client)

    asyncio.run(asked())


def by_proxy(url: str) -> None:
    with proxy_to(url) as local, openai.OpenAI(base_url=f"{local}/v1", api_key=KEY, timeout=30) as client:
        ask(client)


def secrets_of(node: FakeNode) -> list[str]:
    """What the vault would be given, call by call."""
    return [opened.prompts[0]["hidden"]["index_secret"] for opened in node.opened]


def saying(status: int, code: str, **headers: str) -> Any:
    """Somebody on the way has the request served, drops the answer and says this instead."""

    async def instead(received: Received, forward: Next) -> Reply:
        await whole(await forward(received))
        return reply(status, json.dumps({"error": {"message": "x", "code": code}}).encode(), **headers)

    return tricks(sealed=instead)


@pytest.fixture(params=[by_client, by_async_client, by_proxy])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    monkeypatch.setattr(openai._base_client.BaseClient, "_calculate_retry_timeout", lambda *_: 0.0)
    chosen: Callable[[str], None] = request.param
    return chosen


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (409, "channel_key_unknown"),
        (409, "message_expired"),
        (409, "x"),
        (429, "queue_full"),
        (503, "service_unavailable"),
    ],
)
def test_a_word_in_the_clear_has_nothing_sent_again(
    node: FakeNode, way: Callable[[str], None], status: int, code: str
) -> None:
    """As the SDK is set by default: it tries again where a server seems to say so."""
    with standing_between(node.url, saying(status, code, retry_after="0")) as middle:
        with pytest.raises((openai.APIConnectionError, openai.APIStatusError)):
            way(middle.url)
        assert len(middle.sealed_seen) == 1 and len(node.opened) == 1


async def cut(received: Received, forward: Next) -> Reply:
    await whole(await forward(received))
    raise ConnectionAbortedError


def test_a_call_that_is_sent_again_has_the_same_secret_again(node: FakeNode, way: Callable[[str], None]) -> None:
    """A connection that breaks before anything is answered: the SDK tries again, as it does everywhere."""
    raises = pytest.raises((openai.APIConnectionError, openai.APIStatusError))
    with standing_between(node.url, tricks(sealed=cut)) as middle, raises:
        way(middle.url)
    assert len(node.opened) == 3 and len(set(secrets_of(node))) == 1


def test_where_every_message_draws_its_own_secret_the_same_line_sees_one_call_among_three_sets(
    node: FakeNode, way: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IndexSecrets, "of", lambda *_: new_secret())
    raises = pytest.raises((openai.APIConnectionError, openai.APIStatusError))
    with standing_between(node.url, tricks(sealed=cut)) as middle, raises:
        way(middle.url)
    assert len(set(secrets_of(node))) == 3


def test_other_prompts_sessions_callers_and_clients_have_other_secrets(node: FakeNode) -> None:
    asked: list[tuple[Any, dict[str, Any]]] = [
        ({}, {}),
        ({"api_key": "sk-other"}, {}),
        ({}, {"session": "mine"}),
        ({}, {"obfuscation": {"fakes": 2}}),
    ]
    with Client(node.url, api_key=KEY, policy=POLICY) as client:
        for options, body in asked:
            with suppress(ChannelBroken, openai.AuthenticationError):
                ask(client.with_options(**options), **{**HIDDEN, **body})
        for seed in (1, 2):
            with suppress(ChannelBroken):
                ask(client, **HIDDEN, seed=seed)
    with Client(node.url, api_key=KEY, policy=POLICY) as client, suppress(ChannelBroken):
        ask(client)
    first, *others, again, once_more, elsewhere = secrets_of(node)
    assert again == once_more == first, "the same prompt, asked for otherwise"
    assert len({first, *others, elsewhere}) == 5


def test_a_node_that_started_again_is_not_sent_a_hidden_prompt_again(node: FakeNode) -> None:
    """Its sessions' substitutes are gone: the user decides. The next request finds it verified."""
    with Client(node.url, api_key=KEY, policy=POLICY) as client:
        node.restart()
        with pytest.raises(openai.APIConnectionError, match="started again"):
            ask(client)
        assert not node.opened and node.evidence_asked == 2
        with suppress(ChannelBroken):  # this node hides nothing
            ask(client)
        assert len(node.opened) == 1 and node.evidence_asked == 2
        node.restart()
        ask(client, protection="partitioned")
        assert len(node.opened) == 2 and node.evidence_asked == 3, "at other levels it is sent once more"


# ---- what evidence proves


def verified(key: bytes, node_s: float, took_s: float = 0.0) -> Verification:
    at = datetime.now(UTC)
    verdict = Examination().verdict()
    return Verification("u", at, bytes(32), verdict, key, int(1000 * node_s), monotonic(), took_s)


def sealed(key: bytes, before: Verification, **body: Any) -> SealedMessage:
    asked = json.dumps({"messages": MESSAGES, **body}).encode()
    return seal_message(key, "POST", "/v1/chat/completions", (), asked, before.node_ms(), IndexSecrets())


@pytest.mark.parametrize(
    ("shift_s", "took_s", "proven"),
    [
        (0, 0, False),
        (10, 0, False),
        (16, 0, False),
        (18, 0, True),
        (3600, 5, True),
        (-1, 0, False),
        (-3, 0, True),
        (-3, 2, False),
        (-3600, 2, True),
    ],
)
def test_a_request_came_too_late_only_if_the_node_s_clock_says_so(shift_s: float, took_s: float, proven: bool) -> None:
    """Who lies that it did may hold the evidence back as well: that alone must not look like a clock that was set."""
    key = ChannelKey.generate().public
    before = verified(key, 1e6)
    message, now = sealed(key, before, **HIDDEN), verified(key, 1e6 + shift_s, took_s)
    said = MessageExpired("x")
    if proven:
        check_denial(said, message, before, now)
    else:
        with pytest.raises(MessageExpired, match="in time"):
            check_denial(said, message, before, now)


def test_a_key_is_lost_only_if_evidence_shows_another() -> None:
    key, other = ChannelKey.generate().public, ChannelKey.generate().public
    before, said = verified(key, 1e6), ChannelKeyUnknown("x")
    message, hidden = sealed(key, before, protection="partitioned"), sealed(key, before, **HIDDEN)
    check_denial(said, message, before, verified(other, 1e6))
    for sent, shown in ((message, key), (hidden, key), (hidden, other)):
        with pytest.raises(ChannelKeyUnknown) as caught:
            check_denial(said, sent, before, verified(shown, 1e6))
        assert isinstance(caught.value, CloisterError) and "not sent again" in str(caught.value)
