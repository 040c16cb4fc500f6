"""The sealed API over a fake backend: inner requests in, sealed answers out, as any ASGI server would serve them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cloister.channel.envelope import InnerHead, InnerRequest, Validity
from cloister.channel.sealing import ChannelKey, RequestKeys, address_to, seal_request
from cloister.channel.stream import FrameKind, StreamOpener
from cloister.client.message import split_prompts
from cloister.client.winnow import IndexSecrets
from cloister.config import GatewaySettings
from cloister.errors import ServiceUnavailable
from cloister.gateway.app import create_api
from cloister.keys import load_keys
from cloister.messages.controller_frontend import BytesTaken, CancelSealed, SealedPart
from cloister.messages.controller_sealed_api import Serve
from cloister.messages.generation import Failed
from cloister.messages.prompts import SealedPrompt
from cloister.sealed_api.exchange import WINDOW_BYTES, Exchanges, now_ms
from tests.gateway.fakes import KEY, MODEL, ByteTokenizer, FakeBackend, FakeStream, chat_body, completion_body

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
HEADERS = (("Authorization", KEY["Authorization"]), ("Content-Type", "application/json"))
PATIENCE_S = 120  # the machine may be busy


class VaultBackend(FakeBackend):
    """Takes the name of a sealed prompt for the prompt."""

    async def generate(self, tenant: str, job: Any, params: Any) -> FakeStream:
        if isinstance(getattr(job, "prompt", None), SealedPrompt):
            self.named = [*getattr(self, "named", []), (job.prompt, job.level)]
            if self.fails is not None and self.fails_after is None:
                raise self.fails()
            return FakeStream(1, 5, self._stream(None, params))
        return await super().generate(tenant, job, params)


class Answer:
    """What came of one request."""

    def __init__(self, keys: RequestKeys, enc: bytes) -> None:
        self.opener = StreamOpener(keys.response, enc)
        self.frames: list[Any] = []
        self.sizes: list[int] = []
        self.failed: Failed | None = None
        self.done = asyncio.Event()

    def put(self, message: SealedPart | Failed) -> None:
        if isinstance(message, Failed):
            self.failed = message
            self.done.set()
            return
        self.sizes.append(len(message.data))
        self.frames += self.opener.feed(message.data)
        if message.end:
            self.opener.finish()
            self.done.set()

    @property
    def head(self) -> InnerHead:
        return InnerHead.decode(self.frames[0].data)

    @property
    def body(self) -> bytes:
        return b"".join(frame.data for frame in self.frames[1:])


class Room:
    """A exchanges and whoever sends to it."""

    def __init__(self, backend: FakeBackend, **settings: Any) -> None:
        chosen = GatewaySettings(**settings)
        self.app = create_api(backend, ByteTokenizer(), MODEL, chosen, 1, load_keys(chosen))
        self.exchanges = Exchanges(self.app, self._receive)
        self.answers: dict[int, Answer] = {}
        self.frames: list[tuple[Any, ...]] = []
        self._node = ChannelKey.generate()

    def _receive(self, *messages: Any) -> None:
        self.frames.append(messages)
        for message in messages:
            self.answers[message.request_id].put(message)

    def send(self, number: int, method: str, path: str, body: Any = None, prompts: int = 0,
             headers: Any = HEADERS, alter: bool = False, ago_s: int = 0) -> Answer:  # fmt: skip
        enc, keys = address_to(self._node.public)
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        validity = Validity.beginning(now_ms() - 1000 * ago_s, len(data))
        sealed = seal_request(keys.request, enc, InnerRequest(method, path, headers, data, validity).encode())
        if alter:
            sealed = sealed[:-1] + bytes([sealed[-1] ^ 1])
        derived = self._node.accept(enc)
        self.keys = derived
        self.answers[number] = Answer(keys, enc)
        self.exchanges.handle(Serve(number, enc, sealed, prompts, derived.request, derived.response))
        return self.answers[number]

    async def ask(self, *args: Any, **more: Any) -> Answer:
        number = len(self.answers) + 1
        answer = self.send(number, *args, **more)
        async with asyncio.timeout(PATIENCE_S):
            await answer.done.wait()
            while number in self.exchanges._exchanges:
                await asyncio.sleep(0)
        return answer


@pytest.fixture
def backend() -> VaultBackend:
    return VaultBackend()


@pytest.fixture
async def room(backend: FakeBackend) -> AsyncIterator[Room]:
    yield Room(backend)


def sealed_chat(**fields: Any) -> dict[str, Any]:
    return chat_body(messages={"sealed": 1}, **fields)


async def test_an_answer_is_head_data_and_end(room: Room, backend: VaultBackend) -> None:
    answer = await room.ask("POST", CHAT, sealed_chat(), prompts=1)
    assert (answer.head.status, dict(answer.head.headers)["content-type"]) == (200, "application/json")
    assert json.loads(answer.body)["choices"][0]["message"]["content"] == backend.answer
    assert [frame.kind for frame in answer.frames] == [FrameKind.HEAD, FrameKind.DATA, FrameKind.END]
    assert backend.named == [(SealedPrompt(1, 0, "messages"), "partitioned")]
    assert len(answer.sizes) == 1 and not room.exchanges._exchanges


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_that_a_client_sealed_is_answered_as_one(
    room: Room, backend: VaultBackend, stream: bool
) -> None:
    given = {"model": MODEL, "input": "secret", "instructions": "secret", "max_output_tokens": 5, "temperature": 0}
    raw = json.dumps({**given, "stream": stream, "include": ["message.output_text.logprobs"]}).encode()
    inner, prompts, _ = split_prompts("POST", RESPONSES, (), raw, IndexSecrets())
    assert b"secret" not in inner and len(prompts) == 1
    answer = await room.ask("POST", RESPONSES, inner, prompts=1)
    assert answer.head.status == 200 and backend.named == [(SealedPrompt(1, 0, "messages"), "partitioned")]
    data = [line for line in answer.body.split(b"\n") if line.startswith(b"data: {")]
    response = json.loads(data[-1][6:])["response"] if stream else json.loads(answer.body)
    last = answer.frames[-2].data
    assert not stream or (b"event: response.incomplete" in last and last.endswith(b"[DONE]\n\n")), "a client holds both"
    [item] = response["output"]
    assert item["content"][0]["text"] == "Hello" and len(item["content"][0]["logprobs"]) == 5
    assert (response["status"], response["max_output_tokens"]) == ("incomplete", 5)


async def test_each_prompt_of_a_completion_is_named(room: Room, backend: VaultBackend) -> None:
    body = completion_body(prompt={"sealed": 3}, protection="isolated", n=2)
    answer = await room.ask("POST", COMPLETIONS, body, prompts=3)
    assert len(json.loads(answer.body)["choices"]) == 6
    assert backend.named == [(SealedPrompt(1, n, "prompt"), "isolated") for n in (0, 0, 1, 1, 2, 2)]


async def test_a_stream_is_sealed_as_it_comes(room: Room, backend: VaultBackend) -> None:
    body = sealed_chat(stream=True, stream_options={"include_usage": True})
    answer = await room.ask("POST", CHAT, body, prompts=1)
    events = [line[6:] for line in answer.body.decode().splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["usage"]["total_tokens"] == 5 + len(backend.answer) + 1
    text = "".join(json.loads(event)["choices"][0]["delta"].get("content", "") for event in events[:-2])
    assert text == backend.answer
    assert len(answer.sizes) > 10
    assert len(set(answer.sizes[1:-1])) == 1, "every token looks alike from outside"


async def test_what_several_answers_say_in_one_turn_goes_as_one_frame(room: Room, backend: VaultBackend) -> None:
    answers = [room.send(n, "POST", CHAT, sealed_chat(stream=True), prompts=1) for n in range(1, 9)]
    for answer in answers:
        await asyncio.wait_for(answer.done.wait(), PATIENCE_S)
    assert max(len(frame) for frame in room.frames) == 8
    assert len(room.frames) < 2 * len(answers[0].sizes)


@pytest.mark.parametrize(
    ("method", "path", "body", "prompts", "status", "code"),
    [
        ("GET", "/v1/models", None, 0, 200, None),
        ("GET", "/health", None, 0, 200, None),
        ("DELETE", "/v1/sessions/a", None, 0, 204, None),
        ("GET", "/v1/requests/none/view", None, 0, 404, "not_found"),
        ("GET", "/nothing?here=1", None, 0, 404, "not_found"),
        ("GET", "/", None, 0, 404, "not_found"),
        ("GET", "/v1/sealed", None, 0, 404, "not_found"),
        ("PUT", CHAT, None, 0, 405, "method_not_allowed"),
        ("POST", CHAT, b"{", 0, 400, "invalid_request"),
        ("POST", CHAT, {"model": MODEL}, 0, 400, "invalid_request"),
        ("POST", CHAT, chat_body(model="other", messages={"sealed": 1}), 1, 404, "model_not_found"),
        ("POST", CHAT, chat_body(messages={"sealed": 1}, temperature=7), 1, 400, "invalid_request"),
        ("POST", CHAT, chat_body(messages={"sealed": 1}, protection="mpc"), 1, 400, "protection_unavailable"),
        # Sealed prompts that are not there, or more than are there.
        ("POST", CHAT, chat_body(messages={"sealed": 1}), 0, 400, "invalid_request"),
        ("POST", CHAT, chat_body(messages={"sealed": 2}), 2, 400, "invalid_request"),
        ("POST", COMPLETIONS, completion_body(prompt={"sealed": 2}), 1, 400, "invalid_request"),
        ("POST", COMPLETIONS, completion_body(prompt={"sealed": 0}), 0, 400, "invalid_request"),
        ("POST", COMPLETIONS, completion_body(prompt={"sealed": True}), 1, 400, "invalid_request"),
        # A prompt in the open where it must be sealed, and the other way about.
        ("POST", CHAT, chat_body(), 0, 400, "invalid_request"),
        ("POST", COMPLETIONS, completion_body(protection="isolated"), 0, 400, "invalid_request"),
        ("POST", RESPONSES, {"model": MODEL, "input": "a"}, 0, 400, "invalid_request"),
        ("POST", RESPONSES, {"model": MODEL, "input": {"sealed": 1}}, 0, 400, "invalid_request"),
        ("POST", RESPONSES, {"model": MODEL, "input": "a", "protection": "open"}, 0, 200, None),
        ("GET", f"{RESPONSES}/resp_1", None, 0, 404, "not_found"),
        ("POST", CHAT, chat_body(messages={"sealed": 1}, protection="open"), 1, 400, "invalid_request"),
        ("POST", CHAT, chat_body(protection="open"), 0, 200, None),
        ("POST", COMPLETIONS, completion_body(protection="open", echo=True), 0, 200, None),
    ],
)  # fmt: skip
async def test_statuses_and_errors_are_the_applications(
    room: Room, method: str, path: str, body: Any, prompts: int, status: int, code: str | None
) -> None:
    answer = await room.ask(method, path, body, prompts)
    assert answer.failed is None and answer.head.status == status, answer.body
    if code is not None:
        assert json.loads(answer.body)["error"]["code"] == code


async def test_a_field_that_is_given_twice_is_refused(room: Room, backend: VaultBackend) -> None:
    body = json.dumps(sealed_chat(protection="isolated"))[:-1] + ', "protection": "partitioned"}'
    answer = await room.ask("POST", CHAT, body.encode(), 1)
    assert answer.head.status == 400
    assert json.loads(answer.body)["error"]["param"] == "protection"
    assert not hasattr(backend, "named")


@pytest.mark.parametrize("ago_s", [20, -60])
async def test_what_was_held_back_for_twenty_seconds_is_not_served(
    room: Room, backend: VaultBackend, ago_s: int
) -> None:
    answer = await room.ask("POST", CHAT, sealed_chat(), prompts=1, ago_s=ago_s)
    assert answer.failed is not None and answer.failed.code == "message_expired"
    assert not answer.frames and not hasattr(backend, "named"), "nobody was asked for anything"


async def test_the_key_is_inside(room: Room) -> None:
    answer = await room.ask("GET", "/v1/models", headers=())
    assert (answer.head.status, json.loads(answer.body)["error"]["code"]) == (401, "invalid_api_key")
    answer = await room.ask("GET", "/metrics", headers=())
    assert answer.head.status == 401, "nobody is local here"


async def test_headers_of_a_connection_are_not_believed(room: Room) -> None:
    """A host that is not this machine would be refused, a length that is wrong would be waited for."""
    odd = (*HEADERS, ("Host", "example.org"), ("Content-Length", "5"), ("Transfer-Encoding", "chunked"))
    answer = await room.ask("POST", CHAT, sealed_chat(), prompts=1, headers=odd)
    assert answer.head.status == 200
    assert "connection" not in dict(answer.head.headers)


async def test_the_level_may_be_asked_for_in_a_header(room: Room, backend: VaultBackend) -> None:
    headers = (*HEADERS, ("X-Cloister-Protection", "isolated"), ("X-Cloister-Session", "mine"))
    answer = await room.ask("POST", CHAT, sealed_chat(), prompts=1, headers=headers)
    assert backend.named[0][1] == "isolated"
    assert dict(answer.head.headers)["x-cloister-session"] == "mine"


async def test_what_does_not_open_fails_without_a_stream(room: Room) -> None:
    answer = await room.ask("GET", "/v1/models", alter=True)
    assert answer.failed is not None and answer.failed.code == "channel_broken" and not answer.frames
    assert room.keys.request == room.keys.response == bytes(32)


async def test_keys_are_overwritten(room: Room) -> None:
    await room.ask("GET", "/v1/models")
    assert room.keys.request == room.keys.response == bytes(32)


async def test_a_failure_of_the_backend_has_its_status_or_its_event(room: Room, backend: VaultBackend) -> None:
    backend.fails = lambda: ServiceUnavailable("The service process ended.")
    answer = await room.ask("POST", CHAT, sealed_chat(stream=True), prompts=1)
    assert answer.head.status == 503
    backend.fails_after = 3
    answer = await room.ask("POST", CHAT, sealed_chat(stream=True), prompts=1)
    assert answer.head.status == 200 and b"service_unavailable" in answer.body


async def test_a_user_who_leaves_cancels(room: Room, backend: VaultBackend) -> None:
    backend.ends, backend.pause = False, 0.001
    answer = room.send(1, "POST", CHAT, sealed_chat(stream=True, n=2, max_tokens=1000), prompts=1)
    while len(answer.sizes) < 5:
        await asyncio.sleep(0.001)
    assert backend.open == 2
    room.exchanges.handle(CancelSealed(1))
    received = len(answer.sizes)
    async with asyncio.timeout(PATIENCE_S):
        while backend.open or room.exchanges._exchanges:
            await asyncio.sleep(0.001)
    assert backend.cancelled == 2 and len(answer.sizes) == received
    assert answer.failed is None


async def test_no_more_is_made_than_is_taken(room: Room, backend: VaultBackend) -> None:
    """A reader that takes nothing holds the answer up, and it goes on when it reads again."""
    backend.ends, backend.pause = False, 0
    answer = room.send(1, "POST", CHAT, sealed_chat(stream=True, max_tokens=1500, logprobs=True, top_logprobs=20),
                       prompts=1)  # fmt: skip
    before = -1
    async with asyncio.timeout(PATIENCE_S):
        while sum(answer.sizes) != before or before <= WINDOW_BYTES:  # a busy machine pauses, too
            before = sum(answer.sizes)
            await asyncio.sleep(0.1)
    assert not answer.done.is_set()
    assert WINDOW_BYTES < before < 2 * WINDOW_BYTES
    told = 0
    async with asyncio.timeout(PATIENCE_S):
        while not answer.done.is_set():
            if (new := sum(answer.sizes) - told) > 0:
                room.exchanges.handle(BytesTaken(1, new))
                told += new
            await asyncio.sleep(0.001)
    assert answer.body.endswith(b"data: [DONE]\n\n") or b"length" in answer.body


async def test_a_large_answer_goes_in_pieces(room: Room, backend: VaultBackend) -> None:
    body = sealed_chat(max_tokens=1800, logprobs=True, top_logprobs=20)
    backend.ends, backend.step = False, 100
    answer = await room.ask("POST", CHAT, body, prompts=1)
    assert len(answer.body) > 1 << 20 and len(json.loads(answer.body)["choices"][0]["logprobs"]["content"]) == 1800
    assert max(answer.sizes) <= 1 << 18
