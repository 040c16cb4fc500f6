"""The gateway resource: what is inside is answered as if it had come by itself; nothing is taken twice."""

from __future__ import annotations

import json
import subprocess
import sys

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from cloister.channel import bhttp
from cloister.channel.bhttp import Message, RequestHead, ResponseHead
from cloister.channel.ohttp import GATEWAY_PATH, KEY_PROBLEM
from cloister.channel.ohttp.encapsulation import HEADER_BYTES, Form, Header
from cloister.channel.ohttp.keys import KeyConfiguration, document_of, read_keys
from cloister.config import DEVELOPMENT_KEY, GatewaySettings
from cloister.controller.channel_keys import ChannelKeys
from cloister.errors import ChannelBroken, ServiceUnavailable
from cloister.gateway import oblivious as module
from cloister.gateway.app import create_app
from cloister.gateway.oblivious import Oblivious
from cloister.gateway.process import SealedFirst
from cloister.messages.controller_gateway import ExchangeOpened
from tests.gateway.fakes import MODEL, ByteTokenizer, FakeBackend, chat_body
from tests.gateway.test_sealed import FakeCarrier
from tests.oblivious import Exchange, json_request

KEY = ("authorization", f"Bearer {DEVELOPMENT_KEY}")
forms = pytest.mark.parametrize("form", Form)


class KeyedCarrier(FakeCarrier):
    """With keys as the controller holds them."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = ChannelKeys()

    async def open_exchange(self, header: bytes, *, chunked: bool) -> ExchangeOpened:
        keys = self.keys.open_exchange(Header.decode(header), Form.CHUNKED if chunked else Form.WHOLE)
        return ExchangeOpened(1, keys.request_key, keys.base_nonce, keys.response_secret)

    async def key_configurations(self) -> bytes:
        return document_of(self.keys.public)


class Watched:
    """Keeps each scope that reaches the application inside."""

    def __init__(self, app: SealedFirst) -> None:
        self.app, self.scopes = app, list[Scope]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(dict(scope))
        await self.app.inside(scope, receive, send)


@pytest.fixture
def carrier() -> KeyedCarrier:
    return KeyedCarrier()


@pytest.fixture
def routed(backend: FakeBackend, settings: GatewaySettings, carrier: KeyedCarrier) -> FastAPI:
    return create_app(backend, ByteTokenizer(), MODEL, settings, 1_700_000_000, carrier)


@pytest.fixture
def inside(routed: FastAPI) -> Watched:
    return Watched(SealedFirst(routed))


@pytest.fixture
def app(inside: Watched, routed: FastAPI) -> SealedFirst:
    inside.app._oblivious = Oblivious(inside, routed)
    return inside.app


@pytest.fixture
def configuration(carrier: KeyedCarrier) -> KeyConfiguration:
    return KeyConfiguration.of(carrier.keys.public)


async def post(http: httpx.AsyncClient, exchange: Exchange) -> httpx.Response:
    return await http.post(GATEWAY_PATH, content=exchange.sent, headers=exchange.headers)


async def asked(http: httpx.AsyncClient, exchange: Exchange) -> Message:
    response = await post(http, exchange)
    assert response.status_code == 200, response.text
    wanted = "message/ohttp-chunked-res" if exchange.form is Form.CHUNKED else "message/ohttp-res"
    assert response.headers["content-type"] == wanted and response.headers["cache-control"] == "no-store"
    assert response.headers.get("incremental") == ("?1" if exchange.form is Form.CHUNKED else None)
    return exchange.opened(response.content)


async def test_keys_are_published(http: httpx.AsyncClient, configuration: KeyConfiguration) -> None:
    response = await http.get(GATEWAY_PATH)
    assert response.headers["content-type"] == "application/ohttp-keys"
    assert read_keys(response.content) == (configuration,)
    assert (await http.put(GATEWAY_PATH)).status_code == 405


@forms
async def test_a_plain_request_is_answered(
    http: httpx.AsyncClient, configuration: KeyConfiguration, backend: FakeBackend, form: Form
) -> None:
    answer = await asked(http, Exchange(configuration, json_request("/v1/chat/completions", chat_body(), KEY), form))
    assert isinstance(answer.head, ResponseHead) and answer.head.status == 200
    assert json.loads(answer.content)["choices"][0]["message"]["content"] == backend.answer


async def test_a_stream_comes_in_chunks(url: str, configuration: KeyConfiguration) -> None:
    exchange = Exchange(configuration, json_request("/v1/chat/completions", chat_body(stream=True), KEY))
    opener, decoder, pieces = exchange.opener(), bhttp.Decoder(1 << 20), 0
    with httpx.stream("POST", url + GATEWAY_PATH, content=exchange.sent, headers=exchange.headers) as response:
        events: list[bhttp.Event] = []
        for data in response.iter_raw():
            found = decoder.feed(opener.feed(data))
            pieces += any(isinstance(one, bytes) for one in found)
            events += found
    events += decoder.feed(opener.finish()) + decoder.finish()
    body = b"".join(one for one in events if isinstance(one, bytes))
    assert body.endswith(b"data: [DONE]\n\n") and pieces > 2


@forms
async def test_a_sealed_request_passes_as_it_is(
    http: httpx.AsyncClient, configuration: KeyConfiguration, carrier: KeyedCarrier, form: Form
) -> None:
    head = RequestHead("POST", "http", "localhost", "/v1/sealed", (("content-type", "application/cloister-sealed"),))
    answer = await asked(http, Exchange(configuration, Message(head, b"an envelope"), form))
    assert carrier.carried == [b"an envelope"] and answer.content == b"sealed bytes"


async def test_the_api_learns_no_address_and_no_header_of_the_relay(
    http: httpx.AsyncClient, configuration: KeyConfiguration, inside: Watched
) -> None:
    http.headers.update({"X-Forwarded-For": "203.0.113.7", "Cookie": "a=b", "User-Agent": "a relay"})
    await asked(http, Exchange(configuration, Message(RequestHead("GET", "https", "localhost", "/v1/models", (KEY,)))))
    [scope] = inside.scopes
    assert scope["client"] is None and dict(scope["headers"]).keys() == {b"host", b"authorization"}
    assert "203.0.113.7" not in str(scope)


@forms
async def test_a_refusal_inside_is_encapsulated(
    http: httpx.AsyncClient, configuration: KeyConfiguration, form: Form
) -> None:
    for message, status in (
        (json_request("/v1/chat/completions", chat_body()), 401),
        (Message(RequestHead("GET", "https", "", "/nothing")), 404),
        (Message(RequestHead("POST", "https", "", GATEWAY_PATH), b"a request in a request"), 404),
        (Message(RequestHead("GET", "https", "rebound.example", "/v1/models", (KEY,))), 403),
        (Message(RequestHead("OPTIONS", "https", "", "*")), 400),
        (Message(ResponseHead(200)), 400),
        (b"not HTTP", 400),
    ):
        answer = await asked(http, Exchange(configuration, message, form))
        assert isinstance(answer.head, ResponseHead) and answer.head.status == status


@forms
async def test_a_request_is_taken_once(http: httpx.AsyncClient, configuration: KeyConfiguration, form: Form) -> None:
    exchange = Exchange(configuration, Message(RequestHead("GET", "https", "", "/v1/models", (KEY,))), form)
    await asked(http, exchange)
    response = await post(http, exchange)
    assert (response.status_code, response.json()["error"]["code"]) == (409, "message_repeated")


@forms
async def test_a_request_that_was_altered_or_cut_reaches_nobody(
    http: httpx.AsyncClient, configuration: KeyConfiguration, inside: Watched, form: Form
) -> None:
    def altered(sent: bytes, place: int) -> bytes:
        return sent[:place] + bytes((sent[place] ^ 1,)) + sent[place + 1 :]

    message = Message(RequestHead("GET", "https", "", "/v1/models", (KEY,)))
    size = len(Exchange(configuration, message, form).sent)
    for place in (0, 2, 4, 6, 8, HEADER_BYTES, HEADER_BYTES + 1, size - 1):
        exchange = Exchange(configuration, message, form)
        for wrong in (altered(exchange.sent, place), Exchange(configuration, message, form).sent[:place]):
            response = await http.post(GATEWAY_PATH, content=wrong, headers=exchange.headers)
            assert response.status_code == 400 and response.json()["type"] == KEY_PROBLEM
            assert response.headers["content-type"] == "application/problem+json"
    other = Form.WHOLE if form is Form.CHUNKED else Form.CHUNKED
    exchange = Exchange(configuration, message, form)
    exchange.form = other
    assert (await post(http, exchange)).json()["type"] == KEY_PROBLEM
    assert not inside.scopes


async def test_chunks_that_were_reordered_or_are_another_users_reach_nobody(
    http: httpx.AsyncClient, configuration: KeyConfiguration, inside: Watched
) -> None:
    message = Message(RequestHead("POST", "https", "", "/v1/models", (KEY,)), bytes(40_000))
    size = 4 + 16384 + 16
    for way in range(3):
        one, other = Exchange(configuration, message), Exchange(configuration, message)
        begins, chunks = one.sent[:HEADER_BYTES], one.sent[HEADER_BYTES:]
        first, second, last = chunks[:size], chunks[size : 2 * size], chunks[2 * size :]
        theirs = other.sent[HEADER_BYTES:][:size]
        wrong = (second + first + last, theirs + second + last, first + first + last)[way]
        response = await http.post(GATEWAY_PATH, content=begins + wrong, headers=one.headers)
        assert response.json()["type"] == KEY_PROBLEM
    assert not inside.scopes


async def test_a_key_of_before_is_a_key_problem(http: httpx.AsyncClient, carrier: KeyedCarrier) -> None:
    before = KeyConfiguration.of(carrier.keys.public)
    carrier.keys.drop()
    response = await post(http, Exchange(before, json_request("/v1/chat/completions", chat_body(), KEY)))
    assert (response.status_code, response.json()["type"]) == (400, KEY_PROBLEM)


async def test_kind_and_size_are_checked(
    http: httpx.AsyncClient, configuration: KeyConfiguration, settings: GatewaySettings
) -> None:
    response = await http.post(GATEWAY_PATH, content=b"x", headers={"Content-Type": "application/json"})
    assert response.status_code == 415
    large = bytes(2 * settings.max_body_bytes + (1 << 19))
    response = await http.post(GATEWAY_PATH, content=large, headers={"Content-Type": "message/ohttp-req"})
    assert response.status_code == 413


async def test_a_whole_answer_is_bounded(
    http: httpx.AsyncClient, configuration: KeyConfiguration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WHOLE_BYTES", 10)
    exchange = Exchange(configuration, json_request("/v1/chat/completions", chat_body(), KEY), Form.WHOLE)
    assert (await post(http, exchange)).status_code == 500


def test_an_answer_that_breaks_off_has_no_last_chunk(
    url: str, carrier: KeyedCarrier, configuration: KeyConfiguration
) -> None:
    carrier.parts = [b"a part", ServiceUnavailable("The sealed API ended.")]
    head = RequestHead("POST", "http", "localhost", "/v1/sealed", (("content-type", "application/cloister-sealed"),))
    exchange = Exchange(configuration, Message(head, b"x"))
    opener, found = exchange.opener(), b""
    with (
        pytest.raises(httpx.RemoteProtocolError),
        httpx.stream("POST", url + GATEWAY_PATH, content=exchange.sent, headers=exchange.headers) as response,
    ):
        for data in response.iter_raw():
            found += opener.feed(data)
    assert found.endswith(b"a part")
    with pytest.raises(ChannelBroken):
        opener.finish()


FOREIGN = """
import sys, httpx
from ohttpy.transport import Transport
url, model, key = sys.argv[1:]
keys = httpx.get(url + "/.well-known/ohttp-gateway").content
body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "protection": "open", "temperature": 0}
with httpx.Client(transport=Transport(keys), base_url=url, headers={"Authorization": key}, timeout=30) as client:
    print(client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"])
    with client.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as answer:
        print(b"".join(answer.iter_raw())[-14:])
    print(client.post("/v1/chat/completions", json=body | {"model": "none"}).status_code)
"""


def test_ohttpy_gets_answers(url: str, backend: FakeBackend) -> None:
    """A client that others wrote: it finds the key, and asks in its dialect."""
    pytest.importorskip("ohttpy", reason="the foreign client ohttpy is not installed")
    # In a process of its own: it holds the interpreter's lock while it waits.
    command = [sys.executable, "-c", FOREIGN, url, MODEL, KEY[1]]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert said.stdout.splitlines() == [backend.answer, str(b"data: [DONE]\n\n"), "404"], said
