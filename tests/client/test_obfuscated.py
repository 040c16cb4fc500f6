"""A prompt goes out among made-up ones and its own answer comes back; nothing seen outside depends on which is real."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import openai
import pytest

import cloister
from cloister.client.obfuscating_transport import AsyncObfuscatingTransport, plain_wire, spoken
from cloister.client.proxy import Proxy
from cloister.client.sealed_transport import BlockingTransport
from cloister.detection.redaction import shipped_redaction
from cloister.errors import InvalidRequest, ObfuscationRefused, SetupError
from cloister.obfuscation.requests import Obfuscation
from cloister.obfuscation.variants import GivenSubstitutes
from tests.client.http_server import Received, Reply, Server, http_server, reply
from tests.client.local_proxy import serving

FAKES = ["Bo", "Cy", "Di"]
NAMES = ["Ann", *FAKES]
QUESTION = 'Hello, I am <redacted category="name">Ann</redacted>. Who is Ann?'
SECRET = bytes(32)


def obfuscation() -> Obfuscation:
    return Obfuscation(GivenSubstitutes([[name] for name in FAKES]), secret=SECRET)


def name_in(received: Received) -> str:
    said = json.loads(received.body)["messages"][-1]["content"]
    return next(name for name in NAMES if name in said)


class Api:
    """Somebody's API: answers with the last message. `hold` names who waits for `release`, `fail` who fails how."""

    def __init__(self) -> None:
        self.hold: str | None = None
        self.fail: dict[str, int] = {}
        self.cut: str | None = None
        self.release = threading.Event()

    async def __call__(self, received: Received) -> Reply:
        if received.method == "GET":
            return reply(200, b'{"object":"list","data":[]}')
        asked = json.loads(received.body)
        name = name_in(received)
        if name in self.fail:
            return reply(self.fail[name], json.dumps({"error": {"message": f"no {name}"}}).encode())
        said = f"Answer {len(asked['messages'])} to {name}"
        if not asked.get("stream"):
            message = {"role": "assistant", "content": said}
            whole = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            return reply(200, json.dumps({**whole, "choices": [choice]}).encode())
        return Reply(200, "text/event-stream", self._events(name, said))

    async def _events(self, name: str, said: str) -> AsyncIterator[bytes]:
        whole = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}

        def event(delta: dict[str, str], finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return b"data: " + json.dumps({**whole, "choices": [choice]}).encode() + b"\n\n"

        for word in said.split(" "):
            yield event({"content": f"{word} "})
        if self.cut == name:
            raise ConnectionAbortedError
        if self.hold == name:
            await asyncio.to_thread(self.release.wait, 30)
        yield event({}, "stop")
        yield b"data: [DONE]\n\n"


@pytest.fixture
def api() -> Iterator[tuple[Api, Server]]:
    answering = Api()
    with http_server(answering) as server:
        yield answering, server
        answering.release.set()


@contextmanager
def client_of(server: Server, obfuscate: Obfuscation | None = None) -> Iterator[Any]:
    with cloister.Client(
        f"{server.url}/v1",
        obfuscate=obfuscate or obfuscation(),
        insecure_plaintext=True,
        api_key="k",
        max_retries=0,
    ) as client:
        yield client


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def test_the_real_answer_comes_back_and_the_api_sees_all_alike(api: tuple[Api, Server]) -> None:
    _, server = api
    with client_of(server) as client:
        answer = client.chat.completions.create(model="m", messages=[user(QUESTION)], temperature=0)
    assert answer.choices[0].message.content == "Answer 1 to Ann"
    assert sorted(map(name_in, server.received)) == sorted(NAMES)
    for each in server.received:
        said = json.loads(each.body)
        name = name_in(each)
        assert said == {"messages": [user(f"Hello, I am {name}. Who is {name}?")], "model": "m", "temperature": 0}
    headers = [{**each.headers, "content-length": ""} for each in server.received]
    assert all(each == headers[0] for each in headers), "headers tell nothing of who is real"


def test_a_request_without_secrets_goes_as_it_is(api: tuple[Api, Server]) -> None:
    _, server = api
    with client_of(server) as client:
        client.models.list()
        client.chat.completions.create(model="m", messages=[user("Who is Bo?")])
    assert len(server.received) == 2


def test_a_stream_ends_when_all_have_ended(api: tuple[Api, Server]) -> None:
    answering, server = api
    answering.hold = FAKES[1]
    pieces: list[str] = []
    ended = threading.Event()
    with client_of(server) as client:
        stream = client.chat.completions.create(model="m", messages=[user(QUESTION)], stream=True)

        def read() -> None:
            for event in stream:
                pieces.append(event.choices[0].delta.content or "")
                if "".join(pieces).strip() == "Answer 1 to Ann":
                    said.set()
            ended.set()

        said = threading.Event()
        reader = threading.Thread(target=read)
        reader.start()
        assert said.wait(60), "words are handed over as they come"
        assert not ended.wait(0.2), "the real stream has ended, another one has not"
        answering.release.set()
        assert ended.wait(60)
        reader.join()
    assert "".join(pieces).strip() == "Answer 1 to Ann"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stream", [False, True])
def test_whichever_fails_the_request_fails(api: tuple[Api, Server], name: str, stream: bool) -> None:
    """Else who lets one fail would see by what follows whether it was the real one."""
    answering, server = api
    answering.fail = {name: 429}
    with client_of(server) as client, pytest.raises(openai.RateLimitError):
        client.chat.completions.create(model="m", messages=[user(QUESTION)], stream=stream)
    assert len(server.received) == 4


@pytest.mark.parametrize("name", ["Ann", "Cy"])
def test_whichever_stream_is_cut_the_answer_is_not_whole(api: tuple[Api, Server], name: str) -> None:
    answering, server = api
    answering.cut = name
    with client_of(server) as client, pytest.raises((httpx2.HTTPError, openai.APIError)):
        for _ in client.chat.completions.create(model="m", messages=[user(QUESTION)], stream=True):
            pass


@pytest.mark.parametrize("stream", [False, True])
def test_every_variant_s_conversation_goes_on_with_its_own_answer(api: tuple[Api, Server], stream: bool) -> None:
    _, server = api
    with client_of(server) as client:
        first = client.chat.completions.create(model="m", messages=[user(QUESTION)], stream=stream)
        said = (
            "".join(each.choices[0].delta.content or "" for each in first)
            if stream
            else (first.choices[0].message.content)
        )
        turns = [user(QUESTION), assistant(said), user("And where does Ann live?")]
        answer = client.chat.completions.create(model="m", messages=turns)
    assert answer.choices[0].message.content == "Answer 3 to Ann"
    second = server.received[4:]
    assert sorted(map(name_in, second)) == sorted(NAMES), "the same substitutes as before"
    for each in second:
        name = name_in(each)
        contents = [message["content"] for message in json.loads(each.body)["messages"]]
        assert contents[1].strip() == f"Answer 1 to {name}" and contents[2] == f"And where does {name} live?"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"messages": [user(QUESTION), assistant("Never said here"), user("Go on")]}, "obfuscation_refused"),
        ({"messages": [user(QUESTION)], "user": "ann"}, "obfuscation_refused"),
        ({"messages": [user(QUESTION)], "metadata": {"who": "It is Ann."}}, "obfuscation_refused"),
        ({"messages": [user(QUESTION)], "stop": ["Ann"]}, "obfuscation_refused"),
        ({"messages": [user(QUESTION)], "stop": "\nann:"}, "obfuscation_refused"),
        ({"messages": [user(QUESTION)], "logit_bias": {"17": 5}}, "obfuscation_refused"),
        ({"messages": [user("Hi")], "stop": "<redacted>Ann</redacted>"}, "obfuscation_refused"),
        ({"messages": [user("<redacted>Ann")]}, "tags_invalid"),
    ],
)
def test_what_would_give_the_real_one_away_is_refused_and_nothing_sent(
    api: tuple[Api, Server], body: dict[str, Any], code: str
) -> None:
    _, server = api
    transport = BlockingTransport(AsyncObfuscatingTransport(plain_wire(server.url), obfuscation()))
    with httpx2.Client(transport=transport) as client:
        answer = client.post(f"{server.url}/v1/chat/completions", json=body)
    assert answer.status_code == 400 and answer.json()["error"]["code"] == code
    assert "Ann" not in answer.text and not server.received
    made = obfuscation()
    with pytest.raises(ObfuscationRefused):
        made.obfuscate("/v1/embeddings", b'{"input":"<redacted>Ann</redacted>"}')
    assert made.obfuscate("/v1/embeddings", b'{"input":"Ann"}') is None
    made.obfuscate("/v1/chat/completions", json.dumps({"messages": [user(QUESTION)]}).encode())
    with pytest.raises(ObfuscationRefused):
        made.obfuscate("/v1/embeddings", b'{"input":"\\u0041nn"}')


def test_a_field_that_is_given_twice_is_refused_and_nothing_sent() -> None:
    body = b'{"messages": [{"role": "user", "content": "<redacted>Ann</redacted>", "content": "Hi"}]}'
    with pytest.raises(InvalidRequest, match="'content' is given twice"):
        obfuscation().obfuscate("/v1/chat/completions", body)


def test_plaintext_must_be_asked_for_and_only_with_obfuscation(api: tuple[Api, Server]) -> None:
    _, server = api
    with pytest.raises(cloister_error("ServiceUnavailable", "EvidenceInvalid", "VerificationFailed")):
        cloister.Client(server.url, obfuscate=obfuscation(), api_key="k")
    with pytest.raises(SetupError, match="obfuscated prompts alone"):
        cloister.Client(server.url, insecure_plaintext=True, api_key="k")
    with pytest.raises(SetupError, match="verifies nothing"):
        cloister.Client(server.url, obfuscate=obfuscation(), insecure_plaintext=True, allow_software_tee=True)
    with client_of(server) as client:
        with pytest.raises(SetupError, match="Nothing was verified"):
            _ = client.verification
        with pytest.raises(SetupError, match="same server"):
            client.with_options(base_url="https://elsewhere.example/v1")
        assert client.with_options(timeout=5).models.list().data == []


def cloister_error(*names: str) -> tuple[type[Exception], ...]:
    from cloister import errors

    return tuple(getattr(errors, name) for name in names)


@pytest.mark.parametrize("stream", [False, True])
def test_the_proxy_hands_over_the_real_answer(api: tuple[Api, Server], stream: bool) -> None:
    _, server = api
    with serving(lambda: Proxy(f"{server.url}/v1", obfuscation())) as url, httpx2.Client() as client:
        body = {"model": "m", "messages": [user(QUESTION)], "stream": stream}
        answer = client.post(f"{url}/v1/chat/completions", json=body, timeout=60)
        refused = client.post(f"{url}/v1/chat/completions", json={"messages": [user("<redacted>Ann")]})
    assert [text.strip() for text in spoken(answer.content, stream)] == ["Answer 1 to Ann"]
    assert sorted(map(name_in, server.received)) == sorted(NAMES)
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "tags_invalid"


def asked_of(url: str, key: str | None, said: str, **fields: Any) -> tuple[int, bytes]:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    with httpx2.Client() as client:
        body = {"model": "m", "messages": [user(said)], **fields}
        answer = client.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60)
    return answer.status_code, answer.content


@pytest.mark.parametrize("key", [None, "sk-stranger"])
def test_a_stranger_does_not_learn_from_the_proxy_what_is_somebody_s_secret(
    api: tuple[Api, Server], key: str | None
) -> None:
    """Nor a substitute: the same answer, and the same requests sent, whatever word is asked about."""
    _, server = api
    with serving(lambda: Proxy(f"{server.url}/v1", obfuscation())) as url:
        for _ in range(2):
            assert asked_of(url, "sk-victim", QUESTION)[0] == 200
        assert len(server.received) == 8
        heard = {}
        for word in ("Ann", "Bo", "Eve"):
            before = len(server.received)
            status, content = asked_of(url, key, "Who is Bo?", user=word, stop=[word], metadata={"who": word})
            heard[word] = status, content, len(server.received) - before
    assert heard["Ann"] == heard["Bo"] == heard["Eve"] and heard["Eve"][0] == 200 and heard["Eve"][2] == 1


def test_where_callers_share_a_memory_the_same_stranger_learns_it(
    api: tuple[Api, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, server = api
    monkeypatch.setattr(Obfuscation, "another", lambda self, user=None: self)
    with serving(lambda: Proxy(f"{server.url}/v1", obfuscation())) as url:
        asked_of(url, "sk-victim", QUESTION)
        assert [asked_of(url, None, "Who is Bo?", user=word)[0] for word in ("Ann", "Eve")] == [400, 200]


def test_what_a_caller_said_before_holds_for_that_key(api: tuple[Api, Server]) -> None:
    _, server = api
    with serving(lambda: Proxy(f"{server.url}/v1", obfuscation())) as url:
        asked_of(url, "sk-mine", QUESTION)
        asked_of(url, "sk-mine", "And where does Ann live?")
        assert len(server.received) == 8, "a secret, marked or not"
        asked_of(url, "sk-other", "And where does Ann live?")
        assert len(server.received) == 9
        status, content = asked_of(url, "sk-mine", "Go on", user="it is Ann")
    assert status == 400 and b"Ann" not in content and len(server.received) == 9


def bodies(made: Obfuscation, number: int) -> list[str]:
    body = json.dumps({"messages": [user(f"{number}: I am <redacted>Ann</redacted>.")]}).encode()
    sent = made.obfuscate("/v1/chat/completions", body)
    assert sent is not None
    return [json.loads(each)["messages"][0]["content"] for each in sent.bodies]


def test_who_sees_500_requests_learns_nothing_from_their_order() -> None:
    """The adversary bets on the place that was right most often. Without the shuffle it always wins."""
    made = obfuscation()
    places = Counter(next(at for at, text in enumerate(bodies(made, n)) if "Ann" in text) for n in range(500))
    # Four places: 125 ± 4 standard deviations of a binomial with p = 1/4.
    assert all(125 - 39 < places[place] < 125 + 39 for place in range(4))
    together = Counter(text.split("I am ")[1] for n in range(20) for text in bodies(made, n))
    assert set(together.values()) == {20}, "the one that comes again would be the real one"


def test_secrets_are_looked_for_where_the_user_speaks_and_kept_from_then_on() -> None:
    made = Obfuscation(GivenSubstitutes([["Maria Lopez"]]), secret=SECRET, detector=shipped_redaction())

    def contents(*messages: dict[str, str]) -> set[str]:
        sent = made.obfuscate("/v1/chat/completions", json.dumps({"messages": messages}).encode())
        bodies = [] if sent is None else [json.loads(body)["messages"] for body in sent.bodies]
        return {" ".join(message["content"] for message in body) for body in bodies}

    assert contents(user("How do I sort a list?")) == set()
    assert contents(assistant("I am Peter Parker."), user("Please greet Sarah Connor.")) == {
        "I am Peter Parker. Please greet Sarah Connor.",
        "I am Peter Parker. Please greet Maria Lopez.",
    }, "what was answered is not searched"
    assert contents(user("so sarah connor it is")) == {"so sarah connor it is", "so maria lopez it is"}
