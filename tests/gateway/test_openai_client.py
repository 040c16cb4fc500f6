"""The official client against the gateway under uvicorn."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from cloister.config import DEVELOPMENT_KEY
from cloister.errors import PromptTooLong, QueueFull, QuotaExceeded, RequestTimeout, ServiceUnavailable
from tests.gateway.fakes import LEVELS, MODEL, FakeBackend

HI = [{"role": "user", "content": "Hi"}]
OPEN = {"protection": "open"}


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=DEVELOPMENT_KEY, max_retries=0) as client:
        yield client


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "cloister"


def test_chat(client: openai.OpenAI, backend: FakeBackend) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HI, temperature=0)
    assert answer.choices[0].message.content == backend.answer
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage and answer.usage.completion_tokens == len(backend.answer) + 1


def test_chat_stream(client: openai.OpenAI, backend: FakeBackend) -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=HI, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == backend.answer
    assert chunks[-1].usage and chunks[-1].usage.total_tokens == 19 + len(backend.answer) + 1
    assert len(chunks) > 3


def test_chat_n_seed_stop_logprobs(client: openai.OpenAI) -> None:
    def ask(seed: int) -> list[str | None]:
        answer = client.chat.completions.create(model=MODEL, messages=HI, n=2, seed=seed, stop="world")
        return [choice.message.content for choice in answer.choices]

    first, second = ask(5)
    assert first and second and first != second and first.endswith("Hello, ")
    assert ask(5) == [first, second] != ask(6)
    scored = client.chat.completions.create(
        model=MODEL, messages=HI, temperature=0, logprobs=True, top_logprobs=3, max_completion_tokens=4
    )
    content = scored.choices[0].logprobs and scored.choices[0].logprobs.content
    assert content and [len(entry.top_logprobs) for entry in content] == [3] * 4
    assert "".join(entry.token for entry in content) == "Hell"


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=["a", "b"], temperature=0, max_tokens=5, logprobs=1)
    assert [choice.text for choice in answer.choices] == ["Hello", "Hello"]
    assert answer.choices[0].logprobs and answer.choices[0].logprobs.text_offset == [0, 1, 2, 3, 4]
    parts = client.completions.create(
        model=MODEL, prompt=[97, 98], temperature=0, max_tokens=5, echo=True, stream=True, extra_body=OPEN
    )
    assert "".join(part.choices[0].text for part in parts) == "abHello"


def test_extras_of_vllm(client: openai.OpenAI, backend: FakeBackend) -> None:
    client.chat.completions.create(
        model=MODEL, messages=HI, max_tokens=3, extra_body={"top_k": 5, "min_p": 0.1, "ignore_eos": True}
    )
    params = backend.submitted[0].params
    assert (params.top_k, params.min_p, params.stop_tokens) == (5, 0.1, ())
    for level in LEVELS:
        raw = client.chat.completions.with_raw_response.create(
            model=MODEL, messages=HI, extra_body={"protection": level, "session": "a"}
        )
        assert raw.headers["x-cloister-protection"] == level
        assert raw.headers["x-cloister-session"] == "a"


def test_errors_map_to_the_clients_exceptions(client: openai.OpenAI, url: str, backend: FakeBackend) -> None:
    create = client.chat.completions.create
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.NotFoundError):
        create(model="gpt-9", messages=HI)
    with pytest.raises(openai.BadRequestError) as bad:
        create(model=MODEL, messages=HI, extra_body={"protection": "mpc"})
    assert bad.value.code == "protection_unavailable" and bad.value.param == "protection"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=MODEL, prompt="x" * 5000)
    assert long.value.code == "context_length_exceeded"
    for failure, exception in (
        (QueueFull("Full."), openai.RateLimitError),
        (ServiceUnavailable("Away."), openai.InternalServerError),
        (RequestTimeout("Slow."), openai.InternalServerError),
        (PromptTooLong("Long."), openai.BadRequestError),
    ):
        backend.fails = lambda failure=failure: failure
        with pytest.raises(exception):
            create(model=MODEL, messages=HI)


def test_a_quota_that_is_used_up_says_how_much_and_until_when_and_is_not_tried_again(
    url: str, backend: FakeBackend
) -> None:
    failures = [QuotaExceeded("Used up.", retry_after=5000), QuotaExceeded("Asked again.")]
    failures[0].quota = {"tokens": (100, 7), "requests": (9, 0)}
    backend.fails = lambda: failures.pop(0)
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=DEVELOPMENT_KEY, max_retries=2)
    with client, pytest.raises(openai.RateLimitError, match="Used up") as refused:
        client.chat.completions.create(model=MODEL, messages=HI)
    assert (refused.value.type, refused.value.code) == ("insufficient_quota", "insufficient_quota")
    headers = refused.value.response.headers
    assert headers["retry-after"] == "5000"
    for what, shown in (("tokens", ("100", "7", "5000s")), ("requests", ("9", "0", "5000s"))):
        assert tuple(headers[f"x-ratelimit-{name}-{what}"] for name in ("limit", "remaining", "reset")) == shown


def test_an_error_in_the_middle_of_a_stream_is_raised(client: openai.OpenAI, backend: FakeBackend) -> None:
    backend.fails, backend.fails_after = lambda: ServiceUnavailable("The service process ended."), 5
    text = ""
    with pytest.raises(openai.APIError, match="The service process ended"):
        for chunk in client.chat.completions.create(model=MODEL, messages=HI, temperature=0, stream=True):
            text += chunk.choices[0].delta.content or ""
    assert text == "Hello"


def test_a_client_that_retries_gets_through(url: str, backend: FakeBackend) -> None:
    failures = iter([QueueFull("Full.", retry_after=1)])
    generate = backend.generate

    async def once_full(*args):  # type: ignore[no-untyped-def]
        for failure in failures:
            raise failure
        return await generate(*args)

    backend.generate = once_full  # type: ignore[method-assign]
    with openai.OpenAI(base_url=f"{url}/v1", api_key=DEVELOPMENT_KEY, max_retries=1) as client:
        answer = client.chat.completions.create(model=MODEL, messages=HI, temperature=0)
    assert answer.choices[0].message.content == backend.answer
