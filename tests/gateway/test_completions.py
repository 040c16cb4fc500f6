from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.gateway.fakes import LEVELS, MODEL, ByteTokenizer, FakeBackend, completion_body

URL = "/v1/completions"
SAID = "Hello, world! How are you?"
AT_EVERY_LEVEL = pytest.mark.parametrize("level", LEVELS)
CHAT = [{"role": "user", "content": "x" * 20_000}]


@pytest.fixture
def level() -> str:
    """Echo and the scoring of given texts need the prompt, so they are had at `open` only."""
    return "open"


async def ask(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await http.post(URL, json=completion_body(**fields))
    assert response.status_code == 200, response.text
    return response.json()


async def stream(http: httpx.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    response = await http.post(URL, json=completion_body(stream=True, **fields))
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: "))["choices"][0] for event in events[:-2]]


@AT_EVERY_LEVEL
async def test_a_stop_token_ends_the_answer_and_is_not_shown(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    await ask(http, stop_token_ids=[ord("w"), ord("z")], min_tokens=2, max_tokens=40.0)
    params = backend.submitted[0].params
    assert params.stop_tokens == (*ByteTokenizer.stop_tokens, ord("w"), ord("z"))
    assert (params.min_tokens, params.max_tokens) == (2, 40)
    await ask(http, stop_token_ids=[5], ignore_eos=True)
    assert backend.submitted[1].params.stop_tokens == (5,)


@AT_EVERY_LEVEL
@pytest.mark.parametrize("step", [1, 3, 50])
@pytest.mark.parametrize("scored", [None, 0])
async def test_a_stop_string_ends_nothing_too_early(
    http: httpx.AsyncClient, backend: FakeBackend, step: int, scored: int | None
) -> None:
    backend.step = step
    for least in range(20):
        got = await ask(http, stop="o", min_tokens=least, logprobs=scored)
        ends = [at for at, letter in enumerate(SAID) if letter == "o" and at >= least]
        assert got["choices"][0]["text"] == SAID[: ends[0]], "the first that is complete after so many tokens"


@AT_EVERY_LEVEL
@pytest.mark.parametrize(
    ("prompt", "read"),
    [
        ("ab", ["ab"]),
        (["ab", "cd"], ["ab", "cd"]),
        ([97, 98], ["ab"]),
        ([[97], [98, 99]], ["a", "bc"]),
        ("nul\0 and é", ["nul\0 and é"]),
    ],
)
async def test_every_form_of_prompt(
    http: httpx.AsyncClient, backend: FakeBackend, prompt: object, read: list[str]
) -> None:
    answer = await ask(http, prompt=prompt)
    assert sorted(bytes(each.prompt).decode() for each in backend.submitted) == sorted(read)
    assert [choice["text"] for choice in answer["choices"]] == [SAID] * len(read)
    assert answer["usage"]["prompt_tokens"] == sum(len(text.encode()) for text in read)
    assert answer["object"] == "text_completion"


@AT_EVERY_LEVEL
async def test_choices_are_numbered_prompt_by_prompt(http: httpx.AsyncClient, backend: FakeBackend, level: str) -> None:
    answer = await ask(http, prompt=["a", "b"], n=2, seed=1, temperature=1)
    texts = [choice["text"] for choice in answer["choices"]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert texts[0] == texts[2] != texts[1] == texts[3], "with a seed, each prompt answers as it would alone"
    assert answer["usage"]["prompt_tokens"] == 2, "a prompt is counted once, however many its choices"
    backend.submitted.clear()
    await ask(http, prompt=["a", "a"], temperature=1)
    seeds = {each.params.seed for each in backend.submitted}
    assert seeds == {None} if level in ("partitioned", "isolated") else len(seeds) == 2, (
        "without one, equal prompts differ"
    )


@AT_EVERY_LEVEL
async def test_the_default_is_16_tokens(http: httpx.AsyncClient) -> None:
    answer = await ask(http, max_tokens=None)
    assert answer["choices"][0]["text"] == SAID[:16]
    assert answer["choices"][0]["finish_reason"] == "length"


@AT_EVERY_LEVEL
async def test_logprobs_in_the_older_shape(http: httpx.AsyncClient) -> None:
    scores = (await ask(http, logprobs=2, max_tokens=3))["choices"][0]["logprobs"]
    assert scores["tokens"] == ["H", "e", "l"]
    assert scores["text_offset"] == [0, 1, 2]
    assert scores["token_logprobs"] == pytest.approx([-0.572, -0.601, -0.608])
    assert scores["top_logprobs"][0] == {"H": -0.5, "I": -1.5}
    assert (await ask(http, logprobs=0, max_tokens=1))["choices"][0]["logprobs"]["top_logprobs"] == [{"H": -0.572}]
    assert (await ask(http))["choices"][0]["logprobs"] is None


async def test_echo(http: httpx.AsyncClient) -> None:
    assert (await ask(http, echo=True, max_tokens=5))["choices"][0]["text"] == "OnceHello"
    assert (await ask(http, echo=True, max_tokens=5, prompt=[79, 78]))["choices"][0]["text"] == "ONHello"
    assert "".join(part["text"] for part in await stream(http, echo=True, max_tokens=5)) == "OnceHello"


async def test_scoring_a_given_text(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    answer = await ask(http, echo=True, logprobs=1, max_tokens=0)
    choice = answer["choices"][0]
    assert choice["text"] == "Once"
    assert choice["logprobs"]["tokens"] == ["O", "n", "c", "e"]
    assert choice["logprobs"]["token_logprobs"] == pytest.approx([None, -0.61, -0.599, -0.601])
    assert choice["logprobs"]["top_logprobs"][:2] == [None, {"n": -0.5}]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3]
    assert answer["usage"] == {
        **{"prompt_tokens": 4, "completion_tokens": 0, "total_tokens": 4},
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    params = backend.submitted[0].params
    assert (params.max_tokens, params.prompt_logprobs) == (0, 1)


async def test_echo_with_logprobs_goes_on_into_the_answer(http: httpx.AsyncClient) -> None:
    whole = (await ask(http, echo=True, logprobs=1, max_tokens=2, prompt="é1"))["choices"][0]
    assert whole["text"] == "é1He"
    assert whole["logprobs"]["tokens"] == ["bytes:\\xc3", "bytes:\\xa9", "1", "H", "e"]
    assert whole["logprobs"]["text_offset"] == [0, 0, 1, 2, 3]
    parts = await stream(http, echo=True, logprobs=1, max_tokens=2, prompt="é1")
    assert "".join(part["text"] for part in parts) == "é1He"
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [each for part in parts for each in part["logprobs"][name]] == whole["logprobs"][name]


async def test_a_stop_string_does_not_cut_the_echo(http: httpx.AsyncClient) -> None:
    choice = (await ask(http, echo=True, stop="nc"))["choices"][0]
    assert choice["text"] == "Once" + SAID
    assert (await ask(http, echo=True, stop=", w"))["choices"][0]["text"] == "OnceHello"


async def test_a_prompt_that_cannot_fit_is_not_even_tokenised(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(ByteTokenizer, "encode")
    for path, fields in ((URL, {"prompt": "x" * 20_000}), ("/v1/chat/completions", {"messages": CHAT})):
        response = await http.post(path, json={"model": MODEL, **fields})
        assert response.json()["error"]["code"] == "context_length_exceeded"
        assert "the prompt has 4000 or more" in response.json()["error"]["message"]


async def test_a_long_prompt_is_read_whole(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    response = await http.post(URL, json=completion_body(prompt="x" * 9000))
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert "The prompt has 9000 tokens" in response.json()["error"]["message"]
    assert not backend.submitted
