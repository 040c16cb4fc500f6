"""OpenAI's own SDK through the sealed channel: what it can do is unchanged, and nothing goes past the seal."""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import httpx2
import openai
import pytest

import cloister
from cloister.attest.policy import Policy
from cloister.client.openai import AsyncClient, Client
from cloister.client.sealed_transport import AsyncSealedTransport, BlockingTransport
from cloister.errors import SetupError, VerificationFailed
from tests.client.fake_node import KEY, MODEL, FakeNode

SECRET = "the moon is made of private things"
MESSAGES: Any = [{"role": "user", "content": SECRET}]


@pytest.fixture
def client(node: FakeNode) -> Iterator[Client]:
    with Client(f"{node.url}/v1", api_key=KEY, allow_software_tee=True) as client:
        yield client


def test_the_clients_are_exported_and_are_openais() -> None:
    assert cloister.Client is Client and cloister.AsyncClient is AsyncClient
    assert issubclass(Client, openai.OpenAI) and issubclass(AsyncClient, openai.AsyncOpenAI)
    with pytest.raises(AttributeError):
        cloister.Nothing  # type: ignore[attr-defined]  # noqa: B018


def test_chat_completions_and_models_are_as_they_were(client: Client, node: FakeNode) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0)
    assert answer.choices[0].message.content == "so it is " and answer.usage is not None
    pieces = [event.choices[0].delta.content for event in _stream(client)]
    assert pieces == ["so ", "it ", "is ", None]
    plain = client.completions.create(model=MODEL, prompt=["one", "two"])
    assert plain.choices[0].text == "so it is "
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=MESSAGES)
    assert raw.parse().choices[0].message.content == "so it is "
    with client.chat.completions.with_streaming_response.create(model=MODEL, messages=MESSAGES) as streamed:
        assert b"so it is " in b"".join(streamed.iter_bytes())
    assert not node.in_the_clear


def _stream(client: Client, **more: Any) -> Any:
    return client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True, **more)


async def test_the_async_client_is_as_it_was(node: FakeNode) -> None:
    async with AsyncClient(node.url, api_key=KEY, allow_software_tee=True) as client:
        assert [model.id async for model in client.models.list()] == [MODEL]
        answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
        assert answer.choices[0].message.content == "so it is "
        stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        assert [event.choices[0].delta.content async for event in stream] == ["so ", "it ", "is ", None]
        assert client.verification.passed
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="wrong").chat.completions.create(model=MODEL, messages=MESSAGES)
    assert not node.in_the_clear and node.opened[-1].prompts == [MESSAGES]


def test_the_prompt_is_for_the_vault_and_the_key_travels_inside(client: Client, node: FakeNode) -> None:
    client.chat.completions.create(model=MODEL, messages=MESSAGES, user="me", extra_headers={"X-Mine": "1"})
    opened = node.opened[-1]
    assert opened.prompts == [MESSAGES] and opened.body == {"model": MODEL, "messages": {"sealed": 1}}
    assert opened.headers["authorization"] == f"Bearer {KEY}" and opened.headers["x-mine"] == "1"
    assert not any(name.startswith("x-stainless") or name == "user-agent" for name in opened.headers)
    outside = node.server.received[-1]
    assert set(outside.headers) == {"host", "content-type", "accept", "content-length"}
    assert outside.path == "/v1/sealed"
    for private in (SECRET, KEY, "completions", MODEL):
        assert private.encode() not in outside.raw


def test_at_open_the_body_travels_whole_but_sealed_all_the_same(client: Client, node: FakeNode) -> None:
    client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body={"protection": "open"})
    assert node.opened[-1].body["messages"] == MESSAGES and not node.opened[-1].prompts
    assert SECRET.encode() not in node.server.received[-1].raw


def test_the_length_of_a_prompt_does_not_show_to_the_byte(client: Client, node: FakeNode) -> None:
    for words in (1, 2, 3):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x" * words}])
    assert len({len(each.body) for each in node.server.received if each.path == "/v1/sealed"}) == 1


def test_connections_are_used_again(client: Client, node: FakeNode) -> None:
    before = node.server.connections
    for _ in range(5):
        client.chat.completions.create(model=MODEL, messages=MESSAGES)
        list(_stream(client))
    assert node.server.connections == before + 1


def test_an_answer_is_given_piece_by_piece(client: Client, node: FakeNode) -> None:
    node.pause_s = 30
    stream = _stream(client)
    assert next(stream).choices[0].delta.content == "so "
    stream.close()


def test_closing_a_stream_ends_the_work_on_the_node(client: Client, node: FakeNode) -> None:
    node.words, node.pause_s = ("so ",) * 1000, 0.01
    stream = _stream(client)
    next(stream)
    stream.close()
    end = time.monotonic() + 10
    while not node.server.cancelled and time.monotonic() < end:
        time.sleep(0.01)
    assert node.server.cancelled == 1


def test_errors_of_the_node_are_the_sdks_own(client: Client, node: FakeNode) -> None:
    with pytest.raises(openai.AuthenticationError, match="No such key"):
        client.with_options(api_key="wrong").chat.completions.create(model=MODEL, messages=MESSAGES)
    with pytest.raises(openai.NotFoundError, match="Nothing here"):
        client.models.retrieve("none")
    with pytest.raises(openai.BadRequestError, match="cannot be sealed"):
        client.moderations.create(model=MODEL, input="x")
    with pytest.raises(openai.BadRequestError, match="128"):
        client.completions.create(model=MODEL, prompt=["x"] * 129)


def test_a_node_that_started_again_is_verified_again_and_the_request_sent_once_more(
    client: Client, node: FakeNode
) -> None:
    first = client.verification
    node.restart()
    assert client.chat.completions.create(model=MODEL, messages=MESSAGES).choices[0].message.content == "so it is "
    assert client.verification is not first and client.verification.channel_key == node.channel_key.public
    assert node.evidence_asked == 2 and len(node.opened) == 1
    client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert node.evidence_asked == 2


def test_a_node_that_started_again_as_something_else_gets_nothing(client: Client, node: FakeNode) -> None:
    node.restart()
    node.missing_layers = ("seccomp",)
    with pytest.raises(openai.APIConnectionError, match="sandbox") as failed:
        client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert isinstance(failed.value, VerificationFailed) and failed.value.checks == ("sandbox",)
    assert not node.opened and not node.in_the_clear and node.evidence_asked == 2


def test_a_node_that_denies_every_key_is_not_asked_forever(client: Client, node: FakeNode) -> None:
    keep = node.restart

    def evidence_then_restart(nonce: bytes, since: int, make: Any = node.evidence) -> Any:
        made = make(nonce, since)
        keep()
        return made

    node.evidence = evidence_then_restart  # type: ignore[method-assign]
    node.restart()
    with pytest.raises(openai.APIConnectionError, match="channel key"):
        client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert len([each for each in node.server.received if each.path == "/v1/sealed"]) == 2


def test_evidence_older_than_the_policy_allows_is_made_anew(node: FakeNode) -> None:
    policy = Policy(allow_software_tee=True, max_age_s=0.001)
    client = Client(node.url, api_key=KEY, policy=policy)
    time.sleep(0.01)
    client.models.list()
    assert node.evidence_asked == 2


def test_many_threads_share_a_client(client: Client, node: FakeNode) -> None:
    node.restart()
    answers: list[str | None] = []

    def ask() -> None:
        answer = client.chat.completions.create(model=MODEL, messages=MESSAGES)
        answers.append(answer.choices[0].message.content)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["so it is "] * 8 and node.evidence_asked == 2


async def test_many_tasks_share_an_async_client(node: FakeNode) -> None:
    async with AsyncClient(node.url, api_key=KEY, allow_software_tee=True) as client:
        node.restart()
        asked = [client.chat.completions.create(model=MODEL, messages=MESSAGES) for _ in range(8)]
        answers = await asyncio.gather(*asked)
    assert [answer.choices[0].message.content for answer in answers] == ["so it is "] * 8
    assert node.evidence_asked == 2


def test_the_constructor_fails_closed(node: FakeNode) -> None:
    for make in (Client, AsyncClient):
        with pytest.raises(VerificationFailed) as failed:
            make(node.url, api_key=KEY)
        assert "software tee" in failed.value.checks
    assert [each.path for each in node.server.received] == ["/v1/evidence"] * 2


def test_a_policy_file_is_taken_by_its_path(node: FakeNode, tmp_path: Any) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('measurements = ["' + "00" * 32 + '"]')
    with pytest.raises(VerificationFailed) as failed:
        Client(node.url, api_key=KEY, policy=file, allow_software_tee=True)
    assert failed.value.checks == ("release",)
    assert node.release is not None
    file.write_text(f'measurements = ["{node.release.measurement.hex()}"]')
    assert Client(node.url, api_key=KEY, policy=str(file), allow_software_tee=True).verification.passed


def test_nothing_leads_past_the_seal(client: Client, node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SetupError, match="HTTP client"):
        Client(node.url, api_key=KEY, allow_software_tee=True, http_client=httpx2.Client())
    with pytest.raises(SetupError, match="HTTP client"):
        client.with_options(http_client=httpx2.Client())
    with pytest.raises(SetupError, match="same node"):
        client.with_options(base_url="http://127.0.0.1:1/v1")
    with pytest.raises(SetupError, match="WebSockets"):
        Client(node.url, api_key=KEY, allow_software_tee=True, websocket_base_url="ws://127.0.0.1")
    with pytest.raises(SetupError, match="WebSockets"):
        client.websocket_base_url  # noqa: B018
    with pytest.raises(SetupError, match="WebSockets"):
        client.websocket_base_url = "ws://127.0.0.1"
    client.base_url = "http://127.0.0.1:1/v1"  # type: ignore[assignment]
    with pytest.raises(openai.APIConnectionError, match="another server"):
        client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert not node.opened and not node.in_the_clear


def test_realtime_over_websockets_is_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("websockets.sync.client")
    package.connect = lambda *given, **more: pytest.fail("a WebSocket was opened")  # type: ignore[attr-defined]
    for name in ("websockets", "websockets.sync", "websockets.sync.client"):
        monkeypatch.setitem(sys.modules, name, package)
    with pytest.raises(SetupError, match="WebSockets"), client.realtime.connect(model=MODEL):
        pass


def test_copies_share_the_verification_and_keep_options(client: Client, node: FakeNode) -> None:
    copy = client.with_options(max_retries=7, timeout=3)
    assert isinstance(copy, Client) and copy.max_retries == 7 and copy.verification is client.verification
    assert copy.chat.completions.create(model=MODEL, messages=MESSAGES).choices[0].message.content == "so it is "
    assert node.evidence_asked == 1 and client.copy().max_retries == client.max_retries


def test_proxies_of_the_environment_see_nothing(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    client = Client(node.url, api_key=KEY, allow_software_tee=True)
    assert client.models.list().data


def test_a_node_below_a_path_is_asked_below_it(node: FakeNode) -> None:
    client = Client(f"{node.url}/below/v1", api_key=KEY, allow_software_tee=True)
    assert client.models.list().data[0].id == MODEL
    assert {each.path for each in node.server.received} == {"/below/v1/evidence", "/below/v1/sealed"}
    assert node.opened[-1].request.path == "/v1/models"


def test_an_inner_redirect_is_not_followed(client: Client, node: FakeNode) -> None:
    node.answer = lambda *given: (307, "application/json", _empty())  # type: ignore[method-assign]
    node.head_headers = (("location", "http://127.0.0.1:1/v1/chat/completions"),)
    with pytest.raises(openai.APIStatusError) as refused:
        client.with_options(max_retries=0).chat.completions.create(model=MODEL, messages=MESSAGES)
    assert refused.value.status_code == 307 and not node.in_the_clear


async def _empty() -> Any:
    yield b"{}"


def test_the_plain_transport_raises_our_own_errors(client: Client, node: FakeNode) -> None:
    transport = BlockingTransport(AsyncSealedTransport(client._node))
    node.restart()
    node.missing_layers = ("seccomp",)
    with httpx2.Client(transport=transport) as http, pytest.raises(VerificationFailed):
        http.post(f"{node.url}/v1/chat/completions", json={"messages": MESSAGES})


def test_nothing_of_a_prompt_is_logged(client: Client, node: FakeNode, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        list(_stream(client))
        node.words = ()
        client.chat.completions.create(model=MODEL, messages=MESSAGES)
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("cloister")]
    assert not any(SECRET in each for each in ours)
