"""The whole node, through the official client: what a newcomer does after `make serve`.

There are three ways: as plain HTTP, through the verifying client, and through the local proxy. Before a release every
flow goes all of them; else what the node does whatever the way goes one, and what a client does with it two. What an
answer means is asked of the default model; all else of one with few of its layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeAlias

import openai
import pytest

import cloister
from tests.client.local_proxy import proxy_to

Connect: TypeAlias = Callable[[str], openai.OpenAI]

pytestmark = pytest.mark.slow

WAYS = ("plain", "verified", "proxy")
BY_CLIENTS = pytest.mark.parametrize(
    "connect", ["plain", "verified", pytest.param("proxy", marks=pytest.mark.release)], indirect=True
)
BY_THE_NODE = pytest.mark.parametrize(
    "connect", ["plain", *(pytest.param(way, marks=pytest.mark.release) for way in WAYS[1:])], indirect=True
)
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one short sentence."}]


@contextmanager
def connected(way: str, server: str) -> Iterator[Connect]:
    """Makes clients with an API key, over one of the three ways."""

    def plain(url: str) -> Connect:
        return lambda key: openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)

    def verified(key: str) -> openai.OpenAI:
        return cloister.Client(f"{server}/v1", api_key=key, max_retries=0, allow_software_tee=True)

    match way:
        case "plain":
            yield plain(server)
        case "verified":
            yield verified
        case "proxy":
            with proxy_to(server) as local:
                yield plain(local)


@pytest.fixture(scope="module", params=WAYS)
def connect(request: pytest.FixtureRequest, short_server: str) -> Iterator[Connect]:
    with connected(request.param, short_server) as connect:
        yield connect


@pytest.fixture
def client(connect: Connect) -> openai.OpenAI:
    return connect("cloister-dev")


@pytest.fixture
def model(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


@pytest.mark.parametrize("way", WAYS)
def test_chat_answers(way: str, real_server: str) -> None:
    with connected(way, real_server) as connect:
        client = connect("cloister-dev")
        model = client.models.list().data[0].id
        answer = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=24)
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_streamed_text_is_the_text(client: openai.OpenAI, model: str) -> None:
    given = {"model": model, "messages": QUESTION, "temperature": 0, "max_tokens": 24}
    whole = client.chat.completions.create(**given).choices[0].message.content
    chunks = list(client.chat.completions.create(**given, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole
    # Token by token, or on the channel's beat.
    assert sum(bool(c.choices and c.choices[0].delta.content) for c in chunks) > 1
    assert chunks[-1].usage.completion_tokens > 3 and not chunks[-1].choices


@BY_CLIENTS
@pytest.mark.parametrize("level", ["open", "partitioned", "isolated"])
def test_a_response_says_what_the_chat_says(client: openai.OpenAI, model: str, level: str) -> None:
    more = {"model": model, "temperature": 0, "extra_body": {"protection": level}}
    chat = client.chat.completions.create(messages=QUESTION, max_tokens=24, **more).choices[0]
    whole = client.responses.create(input=QUESTION, max_output_tokens=24, **more)
    assert whole.output_text == chat.message.content
    assert whole.status == ("completed" if chat.finish_reason == "stop" else "incomplete")
    with client.responses.stream(input=QUESTION, max_output_tokens=24, **more) as events:
        said = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(said) == whole.output_text and len(said) > 1


@BY_CLIENTS
def test_logprobs_rank_the_chosen_token_first_when_greedy(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, max_tokens=5, logprobs=True, top_logprobs=3
    )
    for token in answer.choices[0].logprobs.content:
        assert token.top_logprobs[0].token == token.token
        assert token.top_logprobs[0].logprob == token.logprob <= 0
        assert len(token.top_logprobs) == 3


@BY_CLIENTS
def test_two_choices_differ_and_a_seed_repeats_them(client: openai.OpenAI, model: str) -> None:
    def choices(seed: int) -> list[str]:
        answer = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "Tell me a story."}], n=2, seed=seed, max_tokens=12
        )
        return [choice.message.content for choice in answer.choices]

    first = choices(7)
    assert first[0] != first[1]
    assert choices(7) == first
    assert choices(8) != first


@BY_THE_NODE
def test_stop_ends_the_text_before_the_stop_string(client: openai.OpenAI, model: str) -> None:
    whole = client.completions.create(model=model, prompt="A, B, C, D,", max_tokens=24, temperature=0).choices[0]
    stop = whole.text[4:8]
    cut = client.completions.create(model=model, prompt="A, B, C, D,", max_tokens=24, temperature=0, stop=[stop])
    assert cut.choices[0].text == whole.text[: whole.text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


@BY_CLIENTS
def test_echo_scores_the_prompt(client: openai.OpenAI, model: str) -> None:
    asked = {"model": model, "prompt": "The sky is", "max_tokens": 0, "echo": True, "logprobs": 0}
    with pytest.raises(openai.BadRequestError, match="echo"):  # at the default level the prompt is not there to score
        client.completions.create(**asked)
    echoed = client.completions.create(**asked, extra_body={"protection": "open"})
    assert echoed.choices[0].text == "The sky is"
    assert echoed.choices[0].logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in echoed.choices[0].logprobs.token_logprobs[1:])


@BY_THE_NODE
@pytest.mark.parametrize("level", ["open", "partitioned"])
def test_neighbours_leave_no_trace_over_http(client: openai.OpenAI, model: str, level: str) -> None:
    def ask(start: int) -> object:
        answer = client.completions.create(
            model=model,
            prompt=list(range(start, start + 24)),
            max_tokens=8,
            temperature=0,
            logprobs=2,
            echo=level == "open",
            extra_body={"protection": level},
        )
        return answer.choices[0].text, answer.choices[0].logprobs

    alone = ask(400)
    with ThreadPoolExecutor(6) as crowd:
        others = [crowd.submit(ask, 400 + 50 * n) for n in range(6)]
        assert others[0].result() == alone
        assert len({repr(other.result()) for other in others}) == 6


@pytest.mark.parametrize(
    ("changed", "error", "code"),
    [
        ({"model": "nope"}, openai.NotFoundError, "model_not_found"),
        (
            {"messages": [{"role": "user", "content": "word " * 9000}]},
            openai.BadRequestError,
            "context_length_exceeded",
        ),
        ({"temperature": "hot"}, openai.BadRequestError, None),
        ({"extra_body": {"protection": "mpc"}}, openai.BadRequestError, "protection_unavailable"),
    ],
)
def test_mistakes_are_clear_errors(
    client: openai.OpenAI, model: str, changed: dict[str, object], error: type[openai.APIStatusError], code: str | None
) -> None:
    with pytest.raises(error) as raised:
        client.chat.completions.create(**{"model": model, "messages": QUESTION, "max_tokens": 4, **changed})
    assert code is None or raised.value.code == code


def test_a_wrong_key_is_refused(connect: Connect) -> None:
    with pytest.raises(openai.AuthenticationError):
        connect("wrong").models.list()
