"""Requests that pay with tokens, in a cloud without sockets: what goes wrong is an error that says what became
of the token, and no request goes again by itself once its token left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx2
import msgspec
import openai
import pytest

from cloister.access.cloud import Cloud
from cloister.access.issuing import Issuer
from cloister.access.tokens import Token
from cloister.access.wallet import Wallet
from cloister.client import tokens as tokens_module
from cloister.client.cloud_transport import SPENT, uniform
from cloister.client.openai import ChannelBrokenError, _error_of_both_families
from cloister.errors import CloisterError, InvalidRequest
from tests.access.adversary import DAY, NODES, Node, World

Answer = Callable[[Node, httpx2.Request], httpx2.Response]
honest = Node.answer


class Asking:
    """One user with the SDK, who has `fetched` tokens."""

    def __init__(self, world: World, retries: int = 2) -> None:
        transport = world.wire(0, _error_of_both_families)
        http = httpx2.AsyncClient(transport=transport)
        url = f"{NODES[0].url}/v1"
        self.client = openai.AsyncOpenAI(api_key="x", base_url=url, http_client=http, max_retries=retries)
        self.keys = [key.id for key in world.cloud.token_keys.all]
        self._wallet = Wallet(world.folder / "0.json")
        self.fetched = self._left()

    async def ask(self, **more: object) -> object:
        said = [{"role": "user", "content": "a"}]
        return await self.client.chat.completions.create(model="m", messages=said, **more)  # type: ignore[arg-type]

    def _left(self) -> int:
        return self._wallet.count(self.keys)

    @property
    def used(self) -> int:
        return self.fetched - self._left()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.0)
    monkeypatch.setattr("openai._base_client.MAX_RETRY_DELAY", 0.0)
    return World(tmp_path, monkeypatch)


def nodes_answer(world: World, monkeypatch: pytest.MonkeyPatch, answer: Answer) -> list[httpx2.Request]:
    """What came to the nodes."""
    came: list[httpx2.Request] = []

    def noted(node: Node, outer: httpx2.Request, key: object) -> httpx2.Response:
        came.append(outer)
        return answer(node, outer)

    monkeypatch.setattr(Node, "answer", noted)
    return came


def clear(status: int, code: str = "") -> httpx2.Response:
    return httpx2.Response(status, stream=Pieces([msgspec.json.encode({"error": {"message": "m", "code": code}})]))


class Pieces(httpx2.AsyncByteStream):
    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self):  # type: ignore[no-untyped-def]
        for piece in self._pieces:
            yield piece


@pytest.mark.parametrize("lost", [httpx2.ReadTimeout, httpx2.ReadError, httpx2.RemoteProtocolError, httpx2.WriteError])
async def test_an_answer_that_does_not_come_costs_a_token_and_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch, lost: type[httpx2.RequestError]
) -> None:
    def drop(node: Node, outer: httpx2.Request) -> httpx2.Response:
        honest(node, outer, node.key)
        raise lost("dropped", request=outer)

    nodes_answer(world, monkeypatch, drop)
    user = Asking(world)
    with pytest.raises(ChannelBrokenError, match=SPENT):
        await user.ask()
    assert len(world.seen) == 1 == user.used  # computed once


async def test_a_node_that_cannot_be_reached_costs_a_token_for_each_attempt_and_computes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(node: Node, outer: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("away", request=outer)

    came = nodes_answer(world, monkeypatch, away)
    user = Asking(world)
    with pytest.raises(openai.APIConnectionError):
        await user.ask()
    assert user.used == 3 == len(came) and not world.seen


async def test_every_attempt_takes_a_new_token_and_the_node_that_it_names(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(node: Node, outer: httpx2.Request) -> httpx2.Response:
        if node.address.host != "n1.example":
            raise httpx2.ConnectError("away", request=outer)
        return honest(node, outer, node.key)

    came = nodes_answer(world, monkeypatch, away)
    user = Asking(world, retries=30)
    for _ in range(4):
        await user.ask()
    seen = [seen for _, _, seen in world.seen]
    assert len(seen) == 4 and len({each["nonce"] for each in seen}) == 4 and user.used == len(came)
    named = [
        node.name for each in came for node in NODES if node.url.removesuffix(":80").rpartition("/")[2] in str(each.url)
    ]
    assert set(named) >= {"n1"} and named.count("n1") == 4


@pytest.mark.parametrize("status", [400, 409, 429, 500, 502, 503, 504])
async def test_a_refusal_in_the_clear_may_be_forged_so_nothing_goes_again(
    world: World, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    def refuse(node: Node, outer: httpx2.Request) -> httpx2.Response:
        honest(node, outer, node.key)
        return clear(status, "queue_full")

    nodes_answer(world, monkeypatch, refuse)
    user = Asking(world)
    with pytest.raises(openai.APIStatusError, match=SPENT):
        await user.ask()
    assert len(world.seen) == 1 == user.used


async def test_an_answer_to_another_request_or_cut_off_is_an_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[bytes] = []

    def swap(node: Node, outer: httpx2.Request) -> httpx2.Response:
        answer = honest(node, outer, node.key)
        kept.append(answer.stream._data)  # type: ignore[attr-defined]
        given = kept[0] if len(kept) < 3 else kept[-1][:-9]
        return httpx2.Response(200, headers=answer.headers, stream=Pieces([given]))

    nodes_answer(world, monkeypatch, swap)
    user = Asking(world)
    await user.ask()
    for number in (2, 3):
        with pytest.raises(ChannelBrokenError, match=SPENT):
            await user.ask()
        assert len(world.seen) == number == user.used


def forged(token: Token) -> Token:
    return Token(token.nonce, token.challenge_digest, token.key_id, token.authenticator[::-1])


@pytest.mark.parametrize("way", ["spent", "forged", "foreign", "expired"])
async def test_a_token_that_does_not_count_is_a_clear_error_and_nothing_is_computed(world: World, way: str) -> None:
    user = Asking(world)
    wallet, file = Wallet(world.folder / "0.json"), world.folder / "0.json"
    before = file.read_bytes()
    await user.ask()
    if way == "spent":
        file.write_bytes(before)  # a backup came back
    elif way == "forged":
        tokens = [forged(wallet.take(user.keys)[0]) for _ in range(3)]
        wallet._write([])
        wallet.add(tokens)
    elif way == "foreign":  # the node's list has another issuer's keys than the client's by now
        other = Issuer(world.folder / "other", "issuer", "/t", per_day=9, period_s=int(7 * DAY), clock=world.clock)
        world.cloud = Cloud(NODES, other.keys)
    else:
        world.clock.now += 14 * DAY  # by the node's clock
        tokens_module.time = lambda: world.clock.now - 14 * DAY  # type: ignore[assignment]
    with pytest.raises(openai.AuthenticationError) as refused:
        await user.ask()
    assert refused.value.code == ("token_spent" if way == "spent" else "token_invalid")
    assert len(world.seen) == 1


async def test_what_would_link_requests_is_refused_before_a_token_is_taken(world: World) -> None:
    user = Asking(world)
    for more in ({"session": "mine"}, {"cache_salt": "mine"}):
        with pytest.raises(openai.BadRequestError, match="would link"):
            await user.ask(extra_body=more)
    with pytest.raises(openai.BadRequestError, match="would link"):
        await user.ask(extra_headers={"X-Cloister-Session": "mine"})
    assert not user.used and not world.seen


def test_requests_are_written_in_one_way() -> None:
    one = uniform(
        [(b"Content-Type", b"application/json; charset=utf-8"), (b"User-Agent", b"x")],
        b'{"b": [1, 2.5], "a":"\\u00e9"}',
    )
    other = uniform(
        [(b"cookie", b"y"), (b"content-type", b"application/json")], b'{"a":"\xc3\xa9","user":"me","b":[1,2.5]}'
    )
    assert one == other == ([(b"content-type", b"application/json")], b'{"a":"\xc3\xa9","b":[1,2.5]}')
    kept = [(b"content-type", b"application/json"), (b"x-cloister-protection", b"open")]
    assert uniform([(b"X-Cloister-Protection", b"open"), kept[0]], b"")[0] == kept
    for body in (b"no JSON", b"[]", b'{"a":1,"a":2}'):
        with pytest.raises(InvalidRequest):
            uniform([], body)


async def test_an_issuer_that_gives_no_more_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    user = Asking(world, retries=0)
    Wallet(world.folder / "0.json")._write([])
    monkeypatch.setattr(world.issuer, "_per_day", 0)
    with pytest.raises((openai.APIStatusError, CloisterError)) as refused:
        await user.ask()
    assert "issuer" in str(refused.value)
