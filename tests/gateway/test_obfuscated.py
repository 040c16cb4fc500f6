"""The level `obfuscated` at the HTTP edge: one ordinary answer comes of several streams, and what the service sees of
how they are read does not tell which it was."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from cloister.backend.base import OpenJob, VaultJob
from cloister.config import GatewaySettings
from cloister.gateway.app import create_app
from cloister.gateway.generation import Generation
from cloister.gateway.schema import SCOPE, SealedRequest
from cloister.messages.generation import Tokens
from cloister.messages.prompts import ChatPrompt, ObfuscationParams, SealedPrompt, TextPrompt, TokenPrompt
from cloister.messages.types import SamplingParams
from cloister.obfuscation.index import REQUEST, Order, Prf
from cloister.vault.prompt_texts import said_in, without_marks
from cloister.vault.reading import read_prompt
from tests.gateway.fakes import END, KEY, MODEL, ByteTokenizer, FakeBackend, FakeStream

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
ANSWERS = ["Ghent is fine.", "Paris? Yes.", "No.", "Delft is where the tiles come from."]


class Streams(FakeBackend):
    """Answers with several streams that end together; `place` is where the real one was, by the secret in the prompt.

    `told` is what the service could see of how it was read: how many steps it made, of how many.
    """

    def __init__(self) -> None:
        super().__init__(("open", "partitioned", "obfuscated"))
        self.answers = ANSWERS
        self.place = 0
        self.steps = (0, 0)

    async def generate(self, tenant: str, job: OpenJob | VaultJob, params: SamplingParams) -> FakeStream:
        assert isinstance(job, VaultJob)
        self.job, order = job, Order(tuple(range(len(self.answers))))
        if isinstance(job.prompt, bytes):  # whoever opens it is the vault
            prompt = read_prompt(job.prompt)
            assert isinstance(prompt, ChatPrompt | TextPrompt) and prompt.hidden is not None
            order = Prf(prompt.hidden.index_secret).order(REQUEST, len(self.answers))
        self.place = order.authentic
        stream = FakeStream(1, 9, self._several(order.shuffled(self.answers), params))
        stream.sequences = len(self.answers)
        return stream

    async def _several(self, answers: list[str], params: SamplingParams) -> AsyncGenerator[Tokens, None]:
        said = [[*text.encode(), END] for text in answers]
        whole = min(max(map(len, said)), params.max_tokens)
        for step in range(whole):
            self.steps = step + 1, whole
            for _ in range(8):  # whoever reads keeps up
                await asyncio.sleep(0)
            for number, tokens in enumerate(said):
                token = tokens[step] if step < len(tokens) else ord("~")
                last = step + 1 == whole and number + 1 == len(said)
                scores = None if params.logprobs is None else (self._score(token, params.logprobs),)
                yield Tokens(1, (token,), scores, finish="length" if last else None, sequence=number)


@pytest.fixture
def backend() -> Streams:
    return Streams()


@pytest.fixture
def http(backend: Streams) -> httpx.AsyncClient:
    app = create_app(backend, ByteTokenizer(), MODEL, GatewaySettings(), created=1)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", headers=KEY)


def body(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "I am <redacted>Ann</redacted>."}]
    wish = {"obfuscation": {"fakes": 3}, "protection": "obfuscated", "temperature": 0}
    return {"model": MODEL, "messages": messages, **wish, **fields}


async def test_the_answer_is_the_real_one_and_looks_like_any_other(http: httpx.AsyncClient, backend: Streams) -> None:
    for _ in range(4):
        response = await http.post(CHAT, json=body(logprobs=True))
        answer = response.json()
        [choice] = answer["choices"]
        assert (choice["index"], choice["message"]["content"], choice["finish_reason"]) == (0, ANSWERS[0], "stop")
        assert len(choice["logprobs"]["content"]) == len(ANSWERS[0])
        assert answer["usage"]["completion_tokens"] == len(ANSWERS[0]) + 1
        assert response.headers["x-cloister-sequences"] == "4"
    assert backend.job.obfuscation == ObfuscationParams(fakes=3)
    await http.post(CHAT, json=body(obfuscation={"auto_redact": True}))
    assert backend.job.obfuscation == ObfuscationParams(auto_redact=True)


async def test_of_a_response_too_the_real_answer_is_shown(http: httpx.AsyncClient, backend: Streams) -> None:
    given = body()
    given["input"] = given.pop("messages")
    whole = (await http.post(RESPONSES, json=given)).json()
    streamed = (await http.post(RESPONSES, json={**given, "stream": True})).text
    events = [json.loads(line[6:]) for line in streamed.split("\n") if line.startswith("data: {")]
    last = events[-1]["response"]
    for answer in (whole, last):
        assert [item["content"][0]["text"] for item in answer["output"]] == [ANSWERS[0]]
        assert answer["usage"]["output_tokens"] == len(ANSWERS[0]) + 1
    assert sum(event["type"].endswith("delta") for event in events) > len(ANSWERS[0]), "events go on to the last's end"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_says_whether_its_substitutes_will_be_used_again(http: httpx.AsyncClient, stream: bool) -> None:
    for session, said in (({}, "fresh"), ({"session": "mine"}, "kept")):
        answer = await http.post(CHAT, json=body(stream=stream, **session))
        assert answer.status_code == 200 and answer.headers["x-cloister-substitutes"] == said
    answer = await http.post(CHAT, json={**body(), "protection": "partitioned", "obfuscation": None})
    assert "x-cloister-substitutes" not in answer.headers


async def test_a_streamed_answer_ends_when_all_have(http: httpx.AsyncClient, backend: Streams) -> None:
    async with http.stream("POST", CHAT, json=body(stream=True, stop=["is"])) as response:
        lines = [line async for line in response.aiter_lines() if line.startswith("data: {")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    assert text == "Ghent " and {event["choices"][0]["index"] for event in events} == {0}
    assert [event["choices"][0]["finish_reason"] for event in events].count("stop") == 1
    assert len("Delft is") <= backend.steps[0] < backend.steps[1], "not before every stream had its end"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"obfuscation": {"fakes": 0}}, "obfuscation"),
        ({"obfuscation": {"fakse": 3}}, "obfuscation"),
        ({"obfuscation": {"auto_redacted": True}}, "obfuscation"),
        ({"auto_redact": True}, "auto_redact"),
        ({"obfuscation": {"fakes": 3, "minimum": 4}}, "obfuscation"),
        ({"obfuscation": {"epsilon": 2.0, "distance": "absolute"}}, "obfuscation"),
        ({"obfuscation": {"fakes": 3, "substitutes": [["Bo"]]}}, "obfuscation"),
        ({"protection": "partitioned"}, "obfuscation"),
        ({"protection": "open"}, "obfuscation"),
        ({"repetition_penalty": 1.5}, "repetition_penalty"),
    ],
    ids=str,
)
async def test_what_this_level_cannot_do_is_refused(http: httpx.AsyncClient, fields: Any, param: str) -> None:
    error = (await http.post(CHAT, json=body(**fields))).json()["error"]
    assert error["param"] == param and error["code"] == "invalid_request"


async def test_substitutes_of_the_users_own_go_with_the_prompt(http: httpx.AsyncClient, backend: Streams) -> None:
    given = [["Bo"], ["Eve"], ["Kim"]]
    await http.post(CHAT, json=body(obfuscation={"substitutes": given}))
    prompt = read_prompt(backend.job.prompt)  # type: ignore[arg-type]
    assert isinstance(prompt, ChatPrompt) and prompt.hidden is not None
    assert prompt.hidden.substitutes == (("Bo",), ("Eve",), ("Kim",))
    assert backend.job.obfuscation == ObfuscationParams(fakes=3)


async def test_of_a_sealed_request_all_streams_go_out_and_end_at_once(backend: Streams) -> None:
    """The client picks one out; this process could not."""
    app = create_app(backend, ByteTokenizer(), MODEL, GatewaySettings(), created=1)

    async def sealed(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, SCOPE: SealedRequest(7, 1)}, receive, send)

    transport = httpx.ASGITransport(sealed)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=KEY) as http:
        whole = (await http.post(CHAT, json=body(messages={"sealed": 1}))).json()
        streamed = await http.post(CHAT, json=body(messages={"sealed": 1}, stream=True))
        given = await http.post(CHAT, json=body(messages={"sealed": 1}, obfuscation={"substitutes": [["Bo"]]}))
        refused = {name: value for name, value in body(input={"sealed": 1}).items() if name != "messages"}
        assert (await http.post(RESPONSES, json=refused)).status_code == 400, "a response shows one answer"
    assert [choice["message"]["content"] for choice in whole["choices"]] == ANSWERS
    assert streamed.headers["x-cloister-sequences"] == "4" and isinstance(backend.job.prompt, SealedPrompt)
    events = [json.loads(line[6:])["choices"][0] for line in streamed.text.split("\n\n") if line.startswith("data: {")]
    said = Counter(event["index"] for event in events if not event["finish_reason"])
    assert len(said) == 4 and len(set(said.values())) == 1, "each has an event whenever one has"
    finishes = [at for at, event in enumerate(events) if event["finish_reason"]]
    assert finishes == list(range(len(events) - 4, len(events))), "after all that is said"
    assert given.json()["error"]["param"] == "obfuscation", "substitutes are for the vault"


async def test_a_reader_hears_of_every_step_whichever_stream_is_real(backend: Streams) -> None:
    """One that has ended is silent and not mute: a program that waits for the next event does not give up sooner."""
    app, sent = create_app(backend, ByteTokenizer(), MODEL, GatewaySettings(), created=1), []

    async def counting(scope: Any, receive: Any, send: Any) -> None:
        async def counted(message: Any) -> None:
            sent[-1] += message["type"] == "http.response.body" and bool(message.get("body"))
            await send(message)

        await app(scope, receive, counted)

    transport = httpx.ASGITransport(counting)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=KEY) as http:
        for real in ANSWERS:
            sent.append(0)
            backend.answers = [real, *(text for text in ANSWERS if text != real)]
            await http.post(CHAT, json=body(stream=True))
    assert len(set(sent)) == 1 and sent[0] > len(ANSWERS[0])


async def test_a_prompt_that_comes_again_has_the_same_secret_again(http: httpx.AsyncClient, backend: Streams) -> None:
    """A service that lets a request fail has its client try again: it must not get the prompt among others then."""

    async def secret(**fields: Any) -> bytes:
        await http.post(CHAT, json=body(**fields))
        prompt = read_prompt(backend.job.prompt)  # type: ignore[arg-type]
        assert isinstance(prompt, ChatPrompt) and prompt.hidden is not None
        return prompt.hidden.index_secret

    first = await secret()
    assert first == await secret() == await secret(temperature=1.0, seed=5, max_tokens=3)
    other = [{"role": "user", "content": "I am <redacted>Ann</redacted>!"}]
    asked: list[dict[str, Any]] = [
        {"messages": other},
        {"session": "mine"},
        {"obfuscation": {"fakes": 3, "minimum": 2}},
    ]
    assert len({first, *[await secret(**fields) for fields in asked]}) == 4


async def test_the_vault_is_told_what_it_is_to_hold_against_secrets(http: httpx.AsyncClient, backend: Streams) -> None:
    await http.post(CHAT, json=body(stop=["is", "\n"], session="mine", cache_salt="s"))
    prompt = read_prompt(backend.job.prompt)  # type: ignore[arg-type]
    assert isinstance(prompt, ChatPrompt) and prompt.hidden is not None
    assert (prompt.hidden.stops, prompt.hidden.names) == (("is", "\n"), ("mine", "s"))
    refused = (await http.post(CHAT, json=body(logit_bias={"17": 5}))).json()["error"]
    assert (refused["code"], refused["param"]) == ("obfuscation_refused", "logit_bias")


SECRET = "I am <redacted>Ann</redacted>."
TURNS = [*body()["messages"], {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "Who?"}]


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (CHAT, body(response_format={"type": "json_object"}, repetition_penalty=1.5)),
        (CHAT, body(n=2)),
        (CHAT, body(messages=TURNS)),
        ("/v1/completions", {"model": MODEL, "prompt": [SECRET, "b"], "protection": "obfuscated"}),
        ("/v1/embeddings", {"model": MODEL, "input": SECRET, "protection": "obfuscated"}),
    ],
)
async def test_what_cannot_go_among_others_is_for_a_vault_alone(path: str, asked: dict[str, Any]) -> None:
    """The service sees nothing of it. The vault finds the secrets' tags and takes them out."""
    backend = FakeBackend(("partitioned", "obfuscated", "isolated"))
    app = create_app(backend, ByteTokenizer(), MODEL, GatewaySettings(), created=1)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", headers=KEY) as http:
        answer = await http.post(path, json=asked)
    assert answer.is_success, answer.text
    assert answer.headers["x-cloister-protection"] == "obfuscated" and "x-cloister-sequences" not in answer.headers
    for job in (each.job for each in backend.submitted):
        assert isinstance(job, VaultJob) and (job.level, job.obfuscation) == ("isolated", None)
        assert isinstance(job.prompt, bytes)
        read = without_marks(read_prompt(job.prompt))
        assert not isinstance(read, TokenPrompt) and read.hidden is None
        assert said_in(read)[0].text in ("I am Ann.", "b")


async def test_a_conversation_whose_session_is_named_goes_among_others(
    http: httpx.AsyncClient, backend: Streams
) -> None:
    answer = await http.post(CHAT, json=body(messages=TURNS, session="mine"))
    assert answer.headers["x-cloister-sequences"] == "4" and backend.job.level == "obfuscated"


# ---- the service as an adversary: it knows all streams and this code, and sees when it is left


def guessed(backend: Streams, said: list[str]) -> int:
    """The stream that had just ended when the service was left; where it was not left early, a fixed one."""
    made, whole = backend.steps
    if made == whole:
        return 0
    ended = [at for at, text in enumerate(said) if len(text) + 1 <= made]
    return max(ended, key=lambda at: len(said[at]))


async def right(http: httpx.AsyncClient, backend: Streams, count: int) -> int:
    draw, hits = random.Random(3), 0
    for number in range(count):
        messages = [{"role": "user", "content": f"{number}: I am <redacted>Ann</redacted>."}]
        lengths = draw.sample(range(2, 30, 4), 4)
        real, *fakes = ["x" * length for length in lengths]
        backend.answers = [real, *fakes]
        answer = await http.post(CHAT, json=body(messages=messages))
        assert answer.json()["choices"][0]["message"]["content"] == real
        said = [""] * 4
        said[backend.place] = real
        for at, text in zip([at for at in range(4) if at != backend.place], fakes, strict=True):
            said[at] = text  # the order among the fakes says nothing
        hits += guessed(backend, said) == backend.place
    return hits


async def test_the_service_does_not_learn_the_real_stream_from_being_left(
    http: httpx.AsyncClient, backend: Streams
) -> None:
    assert 9 <= await right(http, backend, 100) <= 44, "one in four; outside these with a chance of one in ten thousand"


async def test_with_ends_that_are_not_held_the_same_adversary_wins(
    http: httpx.AsyncClient, backend: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_ended = property(lambda generation: generation.shown[0].finish is not None)
    monkeypatch.setattr(Generation, "done", real_ended)
    assert await right(http, backend, 40) >= 30
