"""Requests that pay with tokens, in a cloud without sockets: what goes wrong is an error that says what became
of the token. A request whose node is away goes once more, to the node that the next token's nonce names."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
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


def nodes_of(came: list[httpx2.Request]) -> list[str]:
    return [each.url.path[1:3] for each in came]


def lost_as(lost: type[httpx2.RequestError]) -> Answer:
    def drop(node: Node, outer: httpx2.Request) -> httpx2.Response:
        honest(node, outer, node.key)
        raise lost("dropped", request=outer)

    return drop


def draining(node: Node, outer: httpx2.Request) -> httpx2.Response:
    answer = clear(503, "service_unavailable")
    answer.headers |= {"Retry-After": "2", "Location": "http://n2.example:80", "X-Node": "n2"}
    return answer


def away(node: Node, outer: httpx2.Request) -> httpx2.Response:
    raise httpx2.ConnectError("away", request=outer)


def only_at(name: str, otherwise: Answer) -> Answer:
    def answer(node: Node, outer: httpx2.Request) -> httpx2.Response:
        return honest(node, outer, node.key) if node.place.name == name else otherwise(node, outer)

    return answer


@pytest.mark.parametrize("lost", [httpx2.ReadError, httpx2.RemoteProtocolError, httpx2.WriteError])
async def test_an_answer_that_does_not_come_is_asked_for_once_more_at_another_node(
    world: World, monkeypatch: pytest.MonkeyPatch, lost: type[httpx2.RequestError]
) -> None:
    came = nodes_answer(world, monkeypatch, lost_as(lost))
    user = Asking(world)
    with pytest.raises(ChannelBrokenError, match=SPENT):
        await user.ask()
    assert len(world.seen) == 2 == len(set(nodes_of(came))) and user.used >= 2
    assert len({seen["nonce"] for _, _, seen in world.seen}) == 2, "no token is sent twice"


IN_BODY = {"extra_body": {"protection": "obfuscated"}}
IN_HEADER = {"extra_headers": {"X-Cloister-Protection": "obfuscated"}}


@pytest.mark.parametrize("how", [IN_BODY, IN_HEADER])
@pytest.mark.parametrize("reason", [away, draining, lost_as(httpx2.ReadError)])
async def test_made_up_prompts_do_not_go_to_two_nodes(
    world: World, monkeypatch: pytest.MonkeyPatch, reason: Answer, how: dict[str, dict[str, str]]
) -> None:
    """What two nodes' prompts have in common would be the real one."""
    user = Asking(world, retries=0)
    came = nodes_answer(world, monkeypatch, reason)
    with pytest.raises((openai.APIConnectionError, openai.APIStatusError)):
        await user.ask(**how)
    assert len(came) == 1 == user.used


async def test_a_user_who_does_not_wait_longer_is_not_made_to(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    came = nodes_answer(world, monkeypatch, lost_as(httpx2.ReadTimeout))
    user = Asking(world)
    with pytest.raises(ChannelBrokenError, match=SPENT):
        await user.ask()
    assert len(came) == 1 == user.used


@pytest.mark.parametrize("reason", [away, draining, lost_as(httpx2.RemoteProtocolError)])
async def test_a_node_that_is_away_costs_tokens_and_the_user_sees_nothing_of_it(
    world: World, monkeypatch: pytest.MonkeyPatch, reason: Answer
) -> None:
    came = nodes_answer(world, monkeypatch, only_at("n1", reason))
    user = Asking(world, retries=0)
    answered = failed = 0
    for _ in range(12):
        before = len(came)
        try:
            await user.ask()
        except (openai.APIConnectionError, openai.APIStatusError):
            failed += 1
        else:
            answered += 1
        tries = nodes_of(came[before:])
        assert len(tries) == len(set(tries)) <= 2 and (tries[-1] == "n1" or (len(tries) == 2 and failed))
    assert answered and answered == nodes_of(came).count("n1")


async def test_tries_of_a_program_and_of_the_client_add_up_and_do_not_multiply(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    came = nodes_answer(world, monkeypatch, away)
    user = Asking(world)
    with pytest.raises(openai.APIConnectionError):
        await user.ask()
    assert len(came) == 1 + 1 + 2 <= user.used and not world.seen


async def test_every_attempt_takes_a_new_token_and_the_node_that_it_names(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    came = nodes_answer(world, monkeypatch, only_at("n1", away))
    user = Asking(world, retries=30)
    for _ in range(4):
        await user.ask()
    seen = [seen for _, _, seen in world.seen]
    assert len(seen) == 4 and len({each["nonce"] for each in seen}) == 4 and user.used >= len(came)
    assert nodes_of(came).count("n1") == 4


@pytest.mark.parametrize("bad", [node.name for node in NODES])
async def test_nothing_that_a_node_or_relay_does_chooses_the_next_node(
    world: World, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    """One wallet, and ways to refuse: a request goes to the same nodes in each. A bad one gets what its tokens say."""
    user = Asking(world, retries=0)
    wallet, file = Wallet(world.folder / "0.json"), world.folder / "0.json"
    before, ways = file.read_bytes(), []
    for reason in (away, draining, lost_as(httpx2.ReadError)):
        file.write_bytes(before)
        world.spent = frozenset()
        with monkeypatch.context() as patch:
            came = nodes_answer(world, patch, only_at(bad, reason))
            for _ in range(8):
                with suppress(openai.APIConnectionError, openai.APIStatusError):
                    await user.ask()
        ways.append(nodes_of(came))
    assert ways[0] == ways[1] == ways[2]
    file.write_bytes(before)
    drawn = (world.cloud.node_of(wallet.take(user.keys)[0]).name for _ in range(user.fetched))
    for _ in range(8):
        first = next(drawn)
        tries = [first] if first == bad else [first, next(each for each in drawn if each != first)]
        assert ways[0][: len(tries)] == tries
        del ways[0][: len(tries)]
    assert not ways[0]


async def test_one_node_alone_is_not_asked_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    user = Asking(world, retries=0)
    monkeypatch.setattr(Cloud, "node_of", lambda cloud, token: NODES[0])  # as chance, or a list of one, would have it
    came = nodes_answer(world, monkeypatch, draining)
    with pytest.raises(openai.APIStatusError, match=SPENT):
        await user.ask()
    assert nodes_of(came) == ["n0"] and user.used == 1 + tokens_module.MOST_DRAWS


async def test_no_request_goes_again_after_a_byte_of_its_answer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    class Torn(httpx2.AsyncByteStream):
        def __init__(self, data: bytes) -> None:
            self._data = data

        async def __aiter__(self):  # type: ignore[no-untyped-def]
            yield self._data
            raise httpx2.ReadError("torn")

    def tear(node: Node, outer: httpx2.Request) -> httpx2.Response:
        answer = honest(node, outer, node.key)
        return httpx2.Response(200, headers=answer.headers, stream=Torn(answer.stream._data[:size]))  # type: ignore[attr-defined]

    user = Asking(world)
    came = nodes_answer(world, monkeypatch, tear)
    for count, size in enumerate((0, 1, 60), 1):  # noqa: B007  # `tear` reads it
        with pytest.raises(ChannelBrokenError, match=SPENT):
            await user.ask()
        assert len(came) == count == user.used


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
