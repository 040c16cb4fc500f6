from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from cloister.prompts.tokenizer import GenerationDefaults
from tests.gateway.fakes import CONTEXT, LEVELS, MODEL, ByteTokenizer, FakeBackend, chat_body

URL = "/v1/chat/completions"
pytestmark = pytest.mark.parametrize("level", LEVELS)


async def ask(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await http.post(URL, json=chat_body(**fields))
    assert response.status_code == 200, response.text
    return response.json()


async def stream(http: httpx.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    response = await http.post(URL, json=chat_body(stream=True, **fields))
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


def text_of(events: list[dict[str, Any]], index: int = 0) -> str:
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content", "") for choice in choices)


async def test_a_whole_answer(http: httpx.AsyncClient, backend: FakeBackend, level: str) -> None:
    response = await http.post(URL, json=chat_body())
    answer = response.json()
    assert response.headers["x-cloister-protection"] == level
    assert "x-cloister-session" not in response.headers
    assert answer["object"] == "chat.completion" and answer["model"] == MODEL
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": backend.answer, "refusal": None}
    assert answer["choices"][0]["finish_reason"] == "stop"
    prompt = len("<user>Hi<assistant>")
    said = len(backend.answer) + 1
    assert answer["usage"] == {
        **{"prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said},
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert backend.submitted[0].tenant == "development"


@pytest.mark.parametrize("step", [1, 3, 1000])
async def test_a_streamed_answer_says_the_same(http: httpx.AsyncClient, backend: FakeBackend, step: int) -> None:
    backend.answer, backend.step = "naïve café, 日本語 and 🙂!", step
    events = await stream(http)
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert text_of(events) == backend.answer
    assert [event["choices"][0]["finish_reason"] for event in events][-1] == "stop"
    assert all(event["choices"][0]["finish_reason"] is None for event in events[:-1])
    assert len({event["id"] for event in events}) == 1
    assert "usage" not in events[0]


async def test_usage_comes_last_with_no_choices(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    events = await stream(http, stream_options={"include_usage": True})
    assert all(event["usage"] is None for event in events[:-1])
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == len(backend.answer) + 1


async def test_max_tokens_by_both_names(http: httpx.AsyncClient, backend: FakeBackend, level: str) -> None:
    for fields in ({"max_tokens": 5}, {"max_completion_tokens": 5}, {"max_tokens": 9, "max_completion_tokens": 5}):
        answer = await ask(http, **fields)
        assert answer["choices"][0]["message"]["content"] == "Hello"
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 5
    await ask(http)
    assert backend.submitted[-1].params.max_tokens == 1024, "the default"
    answer = await ask(http, messages=[{"role": "user", "content": "x" * 1500}], ignore_eos=True)
    room = CONTEXT - len("<user><assistant>") - 1500
    assert answer["usage"]["completion_tokens"] == room, "the rest of the context"
    # A vault is told the wish, and caps it: nobody else knows how long the prompt is.
    assert backend.submitted[-1].params.max_tokens == (room if level == "open" else 1024)


@pytest.mark.parametrize("step", [1, 2, 1000])
@pytest.mark.parametrize("streamed", [False, True])
async def test_stop_strings_end_the_answer_and_cancel_it(
    http: httpx.AsyncClient, backend: FakeBackend, step: int, streamed: bool
) -> None:
    backend.step, backend.ends = step, False
    fields = {"stop": ["world", "never"], "max_tokens": 1000, "logprobs": True}
    if streamed:
        events = await stream(http, **fields)
        text, finish = text_of(events), events[-1]["choices"][0]["finish_reason"]
        parts = [event["choices"][0]["logprobs"] for event in events]
        scores = [token for part in parts if part for token in part["content"]]
    else:
        choice = (await ask(http, **fields))["choices"][0]
        text, finish, scores = choice["message"]["content"], choice["finish_reason"], choice["logprobs"]["content"]
    assert (text, finish) == ("Hello, ", "stop")
    assert "".join(score["token"] for score in scores) == "Hello, "
    assert backend.open == 0
    assert backend.cancelled == (step < 1000)


async def test_logprobs(http: httpx.AsyncClient) -> None:
    whole = (await ask(http, logprobs=True, top_logprobs=2))["choices"][0]["logprobs"]["content"]
    assert "".join(entry["token"] for entry in whole) == "Hello, world! How are you?"
    assert whole[0]["bytes"] == [ord("H")]
    assert whole[0]["logprob"] == pytest.approx(-0.5 - ord("H") / 1000)
    assert [(top["token"], top["logprob"]) for top in whole[0]["top_logprobs"]] == [("H", -0.5), ("I", -1.5)]
    events = await stream(http, logprobs=True, top_logprobs=2)
    parts = [choice["logprobs"] for event in events for choice in event["choices"]]
    assert [entry for part in parts if part for entry in part["content"]] == whole
    assert (await ask(http))["choices"][0]["logprobs"] is None


async def test_a_token_that_is_no_whole_character_is_spelt_in_bytes(
    http: httpx.AsyncClient, backend: FakeBackend
) -> None:
    backend.answer = "é!"
    content = (await ask(http, logprobs=True))["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["bytes:\\xc3", "bytes:\\xa9", "!"]
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == "é!"


async def test_n_choices_differ_and_the_first_is_that_of_n_1(http: httpx.AsyncClient) -> None:
    several = (await ask(http, temperature=1, seed=7, n=3))["choices"]
    texts = [choice["message"]["content"] for choice in several]
    assert [choice["index"] for choice in several] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert (await ask(http, temperature=1, seed=7))["choices"][0]["message"]["content"] == texts[0]
    events = await stream(http, temperature=1, seed=7, n=3)
    assert [text_of(events, index) for index in range(3)] == texts


async def test_without_a_seed_who_reads_the_prompt_draws_one(
    http: httpx.AsyncClient, backend: FakeBackend, level: str
) -> None:
    for _ in range(2):
        await ask(http, n=2)
    seeds = {each.params.seed for each in backend.submitted}
    assert seeds == {None} if level in ("partitioned", "isolated") else len(seeds) == 4
    await ask(http, seed=-1)
    assert 0 <= backend.submitted[-1].params.seed < 2**63


async def test_sampling_fields_reach_the_backend(http: httpx.AsyncClient, backend: FakeBackend, level: str) -> None:
    repetition = 1 if level == "partitioned" else 1.2
    await ask(
        http, temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, presence_penalty=1, frequency_penalty=-1,
        repetition_penalty=repetition, logit_bias={"5": 10, "6": -100}, seed=3, ignore_eos=True, max_tokens=4,
    )  # fmt: skip
    params = backend.submitted[0].params
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 40, 0.1)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (1, -1, repetition)
    assert (params.logit_bias, params.seed, params.stop_tokens) == ({5: 10, 6: -100}, 3, ())
    await ask(http, temperature=1e-300, top_p=0, top_k=-1)
    params = backend.submitted[1].params
    assert params.temperature == 0 and params.top_p > 0 and params.top_k == 0
    assert params.stop_tokens == (256,)


ASK_NOTHING = {"function_call": "none", "modalities": ["text"], "audio": None}
"""Fields of what is not served here, with values that clients send by habit."""


async def test_text_parts_and_the_developer_role(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "be"}, {"role": "user", "content": parts}]
    tools: dict[str, Any] = {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}
    await ask(http, messages=messages, response_format={"type": "text"}, user="me", **tools, **ASK_NOTHING)
    assert bytes(backend.submitted[0].prompt).decode() == "<system>be<user>ab<assistant>"


async def test_a_long_conversation_is_read_whole(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    messages = [{"role": "user", "content": "x"}] * 100
    await ask(http, messages=messages, max_tokens=1)
    assert bytes(backend.submitted[0].prompt).decode() == "<user>x" * 100 + "<assistant>"


async def test_what_a_request_leaves_open_the_models_makers_say(
    http: httpx.AsyncClient, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ByteTokenizer, "generation", GenerationDefaults(temperature=0.6, top_p=0.9, top_k=20))
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
    assert (await http.post(URL, json=body)).is_success
    assert (await http.post(URL, json={**body, "temperature": 0, "top_p": 1, "top_k": 0})).is_success
    chosen = [(each.params.temperature, each.params.top_p, each.params.top_k) for each in backend.submitted]
    assert chosen == [(0.6, 0.9, 20), (0.0, 1.0, 0)]
