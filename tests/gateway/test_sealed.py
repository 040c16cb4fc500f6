"""The secure channel at the HTTP edge: bytes in, bytes out, OpenAI-shaped errors, and no more made than is taken."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI

from cloister.backend.base import Carrier, SealedAnswer
from cloister.config import GatewaySettings
from cloister.errors import (
    ChannelBroken,
    ChannelKeyUnknown,
    CloisterError,
    MessageExpired,
    MessageRepeated,
    QueueFull,
    ServiceUnavailable,
)
from cloister.gateway.app import create_app
from cloister.gateway.process import REPORT_TAKEN_BYTES, GatewayClient, SealedFirst
from cloister.messages.controller_frontend import BytesTaken, CancelSealed, SealedPart, StartFrontend
from cloister.messages.controller_gateway import AskEvidence, Evidence, ExchangeOpened, FromGateway, Sealed
from cloister.messages.generation import Failed
from tests.controller.fakes import SERVING, Peer
from tests.gateway.fakes import MODEL, ByteTokenizer, FakeBackend, chat_body, completion_body

SEALED = {"Content-Type": "application/cloister-sealed"}
NONCE = "0f" * 32


class FakeAnswer(SealedAnswer):
    """Says its parts, then fails or stays silent."""

    def __init__(self, parts: list[bytes | CloisterError], ends: bool) -> None:
        self.parts, self.ends = parts, ends
        self.bytes_taken, self.left = 0, asyncio.Event()

    async def next(self) -> tuple[bytes, bool]:
        await asyncio.sleep(0)
        if not self.parts:
            await self.left.wait()
            raise ServiceUnavailable("Nobody is there.")
        part = self.parts.pop(0)
        if isinstance(part, CloisterError):
            raise part
        return part, self.ends and not self.parts

    def taken(self, count: int) -> None:
        self.bytes_taken += count

    def leave(self) -> None:
        self.left.set()


class FakeCarrier(Carrier):
    def __init__(self) -> None:
        self.parts: list[bytes | CloisterError] = [b"sealed ", b"bytes"]
        self.ends = True
        self.carried: list[bytes] = []
        self.answers: list[FakeAnswer] = []
        self.asked: list[tuple[bytes, int]] = []
        self.document: bytes | CloisterError = b'{"version":1}'

    def carry(self, envelope: bytes) -> FakeAnswer:
        self.carried.append(envelope)
        self.answers.append(FakeAnswer(list(self.parts), self.ends))
        return self.answers[-1]

    async def evidence(self, nonce: bytes, since: int) -> bytes:
        self.asked.append((nonce, since))
        if isinstance(self.document, CloisterError):
            raise self.document
        return self.document

    async def open_exchange(self, header: bytes, *, chunked: bool) -> ExchangeOpened:
        raise ChannelKeyUnknown("There is none.")

    async def key_configurations(self) -> bytes:
        return b""


@pytest.fixture
def carrier() -> FakeCarrier:
    return FakeCarrier()


@pytest.fixture
def routed(backend: FakeBackend, settings: GatewaySettings, carrier: FakeCarrier) -> FastAPI:
    return create_app(backend, ByteTokenizer(), MODEL, settings, 1_700_000_000, carrier)


@pytest.fixture
def app(routed: FastAPI) -> SealedFirst:
    return SealedFirst(routed)


async def test_bytes_go_through_unread_in_both_directions(http: httpx.AsyncClient, carrier: FakeCarrier) -> None:
    envelope = bytes(range(256)) * 10
    response = await http.post("/v1/sealed", content=envelope, headers=SEALED)
    assert (response.status_code, response.content) == (200, b"sealed bytes")
    assert response.headers["content-type"] == "application/cloister-sealed"
    assert response.headers["cache-control"] == "no-store"
    assert carrier.carried == [envelope] and carrier.answers[0].bytes_taken == len(b"sealed bytes")


async def test_the_router_would_answer_alike(http: httpx.AsyncClient, routed: FastAPI, carrier: FakeCarrier) -> None:
    """Sealed requests are taken out before it, and are guarded, counted and refused as it would have it."""
    through_router = httpx.AsyncClient(transport=httpx.ASGITransport(routed), base_url="http://localhost")
    foreign, wrong = {**SEALED, "Host": "rebound.example"}, {"Content-Type": "text/plain"}
    told = []
    async with through_router:
        for client in (http, through_router):
            for headers in (SEALED, foreign, wrong):
                response = await client.post("/v1/sealed", content=b"x", headers=headers)
                assert response.headers.pop("x-request-id").startswith("req_")
                told.append((response.status_code, response.content, sorted(response.headers.items())))
            told.append((await client.get("/v1/sealed")).status_code)
    assert told[:4] == told[4:] and [one[0] for one in told[:3]] == [200, 403, 415] and told[3] == 405
    counted = (await http.get("/metrics")).text
    assert 'cloister_requests_total{route="/v1/sealed",status="2xx"} 2.0' in counted
    assert len(carrier.carried) == 2


async def test_no_key_is_asked_for_outside(http: httpx.AsyncClient) -> None:
    del http.headers["Authorization"]
    assert (await http.post("/v1/sealed", content=b"x", headers=SEALED)).status_code == 200
    assert (await http.post("/v1/evidence", json={"nonce": NONCE})).status_code == 200


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ChannelKeyUnknown("Another key."), 409, "channel_key_unknown"),
        (MessageExpired("Too late."), 409, "message_expired"),
        (MessageRepeated("Again."), 409, "message_repeated"),
        (ChannelBroken("Altered."), 400, "channel_broken"),
        (QueueFull("Too many.", retry_after=3), 429, "queue_full"),
        (ServiceUnavailable("Away."), 503, "service_unavailable"),
    ],
)
async def test_errors_before_the_answer_are_openais(
    http: httpx.AsyncClient, carrier: FakeCarrier, error: CloisterError, status: int, code: str
) -> None:
    carrier.parts = [error]
    response = await http.post("/v1/sealed", content=b"x", headers=SEALED)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert response.json()["error"]["message"] == str(error)


async def test_the_bodys_kind_and_size_are_checked(http: httpx.AsyncClient, settings: GatewaySettings) -> None:
    response = await http.post("/v1/sealed", content=b"x", headers={"Content-Type": "application/json"})
    assert (response.status_code, response.json()["error"]["code"]) == (415, "unsupported_media_type")
    limit = 2 * settings.max_body_bytes + (1 << 18)
    assert (await http.post("/v1/sealed", content=bytes(limit), headers=SEALED)).status_code == 200
    response = await http.post("/v1/sealed", content=bytes(limit + 1), headers=SEALED)
    assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")


def test_an_answer_that_breaks_off_is_cut_and_not_completed(url: str, carrier: FakeCarrier) -> None:
    carrier.parts = [b"a part", ServiceUnavailable("The sealed API ended.")]
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.post(f"{url}/v1/sealed", content=b"x", headers=SEALED)


def test_a_client_that_leaves_gives_its_request_up(url: str, carrier: FakeCarrier) -> None:
    carrier.ends = False
    with httpx.stream("POST", f"{url}/v1/sealed", content=b"x", headers=SEALED) as response:
        pieces = response.iter_raw()
        assert b"sealed bytes".startswith(next(pieces))
        assert not carrier.answers[0].left.is_set()
    for _ in range(500):
        if carrier.answers[0].left.is_set():
            return
        asyncio.run(asyncio.sleep(0.01))
    raise AssertionError("it still waits")


async def test_evidence_is_asked_with_nonce_and_size(http: httpx.AsyncClient, carrier: FakeCarrier) -> None:
    response = await http.post("/v1/evidence", json={"nonce": NONCE, "since": 12})
    assert (response.status_code, response.content) == (200, b'{"version":1}')
    assert response.headers["cache-control"] == "no-store"
    assert carrier.asked == [(bytes.fromhex(NONCE), 12)]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"nonce": 1}', b'{"nonce": "0f"}', b'{"nonce": "%s\\n"}' % NONCE.encode(),
             b'{"nonce": "%s", "since": -1}' % NONCE.encode(), b'{"nonce": "%s", "since": "1"}' % NONCE.encode(),
             b'{"nonce": "%s"}' % (b"zz" * 32), b"[" * 5000]
)  # fmt: skip
async def test_a_wrong_question_is_refused(http: httpx.AsyncClient, carrier: FakeCarrier, body: bytes) -> None:
    response = await http.post("/v1/evidence", content=body, headers={"Content-Type": "application/json"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "nonce")
    assert not carrier.asked


async def test_evidence_that_cannot_be_had_is_an_error(http: httpx.AsyncClient, carrier: FakeCarrier) -> None:
    carrier.document = QueueFull("Too many clients ask.", retry_after=1)
    assert (await http.post("/v1/evidence", json={"nonce": NONCE})).status_code == 429


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_in_the_clear_a_sealed_count_is_just_a_wrong_type(http: httpx.AsyncClient, path: str) -> None:
    counted = {"sealed": 1}
    body = chat_body(messages=counted) if "chat" in path else completion_body(prompt=counted)
    response = await http.post(path, json=body)
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert message in ("messages: Input should be a valid array.",
                       'prompt: A prompt that is an object must have "text", a string, and "public", true or false.',
                       )  # fmt: skip


# ---- the client behind it


class Line:
    def __init__(self, client: GatewayClient, controller: Peer) -> None:
        self.client, self.controller = client, controller


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    ours, theirs = socket.socketpair()
    controller = Peer(theirs, FromGateway)
    client = await GatewayClient.connect(ours)
    controller.say(StartFrontend(b"{}", "m", "/m", 1), SERVING)
    await client.serving
    yield Line(client, controller)
    await client.close()
    controller.die()


async def test_parts_that_wait_together_are_taken_together(line: Line) -> None:
    answer = line.client.carry(b"envelope")
    sealed = await line.controller.next(Sealed)
    assert sealed.envelope == b"envelope"
    number = sealed.request_id
    line.controller.say(SealedPart(number, b"a"), SealedPart(number, b"b"), SealedPart(number + 9, b"not ours"))
    await asyncio.sleep(0.05)
    assert await answer.next() == (b"ab", False)
    line.controller.say(SealedPart(number, b"c", end=True))
    assert await answer.next() == (b"c", True)
    answer.leave()  # nothing to give up any more
    await asyncio.sleep(0.05)
    assert not line.controller.messages


async def test_what_is_taken_is_told_now_and_then(line: Line) -> None:
    answer = line.client.carry(b"envelope")
    number = (await line.controller.next(Sealed)).request_id
    answer.taken(REPORT_TAKEN_BYTES - 1)
    answer.taken(10)
    assert await line.controller.next(BytesTaken) == BytesTaken(number, REPORT_TAKEN_BYTES + 9)
    answer.leave()
    assert await line.controller.next(CancelSealed) == CancelSealed(number)
    with pytest.raises(ServiceUnavailable):
        await answer.next()


async def test_a_failure_comes_after_what_was_sent_before(line: Line) -> None:
    answer = line.client.carry(b"envelope")
    number = (await line.controller.next(Sealed)).request_id
    line.controller.say(SealedPart(number, b"a"), Failed(number, "channel_broken", "Altered."))
    await asyncio.sleep(0.05)
    assert await answer.next() == (b"a", False)
    with pytest.raises(ChannelBroken, match="Altered"):
        await answer.next()


async def test_evidence_and_its_refusal_find_who_asked(line: Line) -> None:
    asking = [asyncio.create_task(line.client.evidence(bytes([n]) * 32, n)) for n in range(2)]
    asked = [await line.controller.next(AskEvidence) for _ in range(2)]
    line.controller.say(Failed(asked[1].request_id, "queue_full", "Full.", 2), Evidence(asked[0].request_id, b"{}"))
    assert await asking[0] == b"{}"
    with pytest.raises(QueueFull):
        await asking[1]


async def test_when_the_controller_is_gone_everybody_is_told(line: Line) -> None:
    answer = line.client.carry(b"envelope")
    asking = asyncio.create_task(line.client.evidence(bytes(32), 0))
    await line.controller.next(Sealed)
    line.controller.die()
    with pytest.raises(ServiceUnavailable):
        await answer.next()
    with pytest.raises(ServiceUnavailable):
        await asking
