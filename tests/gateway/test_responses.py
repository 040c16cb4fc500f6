"""POST /v1/responses: OpenAI's own types hold for every answer and event, and the text is the chat's."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import openai
import pytest
from openai.types import responses as types
from pydantic import TypeAdapter

from cloister.config import DEVELOPMENT_KEY
from cloister.errors import PromptTooLong, QueueFull, ServiceUnavailable
from cloister.gateway.answer import PromptTokensDetails
from cloister.gateway.answer import Usage as ChatUsage
from cloister.gateway.choice import Delta
from cloister.gateway.responses_reply import ResponsesReply
from cloister.gateway.tool_calls import CallPiece
from tests.gateway.fakes import KEY, LEVELS, MODEL, ByteTokenizer, FakeBackend

PATH = "/v1/responses"
TEXT = "Hello, world! How are you?"
MESSAGE = [
    *("response.output_item.added", "response.content_part.added", "response.output_text.delta"),
    *("response.output_text.done", "response.content_part.done", "response.output_item.done"),
]
CALL = [
    *("response.output_item.added", "response.function_call_arguments.delta"),
    *("response.function_call_arguments.done", "response.output_item.done"),
]
CHANGES = {"id", "created_at", "completed_at", "item_id"}


def body_of(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": "Hi", "temperature": 0, **fields}


def events_of(text: str) -> list[dict[str, Any]]:
    """The events, each checked by the SDK's own type of its name, and their order."""
    events = []
    for block in text.split("\n\n"):
        named = [line for line in block.split("\n") if not line.startswith(":")]
        if len(named) == 2:
            data = json.loads(named[1].removeprefix("data: "))
            assert named[0] == f"event: {data['type']}"
            events.append(data)
    for number, event in enumerate(events):
        assert event["sequence_number"] == number
        checked = TypeAdapter(types.ResponseStreamEvent).validate_json(json.dumps(event), strict=True)
        assert checked.type == event["type"] and type(checked).__name__.startswith("Response")
    return events


def steps(events: list[dict[str, Any]]) -> list[str]:
    """The types, deltas that follow each other as one."""
    kinds = [event["type"] for event in events]
    return [kind for at, kind in enumerate(kinds) if not kind.endswith("delta") or kinds[at - 1] != kind]


def same(value: Any) -> Any:
    """Without what differs from answer to answer."""
    if isinstance(value, dict):
        return {name: same(each) for name, each in value.items() if name not in CHANGES}
    return [same(each) for each in value] if isinstance(value, list) else value


async def ask(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await http.post(PATH, json=body_of(**fields))
    assert response.status_code == 200, response.text
    types.Response.model_validate_json(response.content, strict=True)
    return dict(response.json())


async def stream(http: httpx.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    response = await http.post(PATH, json=body_of(stream=True, **fields))
    assert response.status_code == 200 and response.text.endswith("data: [DONE]\n\n"), response.text
    return events_of(response.text)


@pytest.mark.parametrize("level", LEVELS)
async def test_an_answer_is_the_chats_whole_and_streamed(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    backend.cached = [3, 3, 3]
    whole = await ask(http, instructions="Be kind.")
    assert whole["output"][0]["content"][0]["text"] == TEXT and whole["status"] == "completed"
    assert whole["usage"] == {
        **{"input_tokens": 35, "output_tokens": len(TEXT) + 1, "total_tokens": 36 + len(TEXT)},
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    events = await stream(http, instructions="Be kind.")
    assert steps(events) == ["response.created", "response.in_progress", *MESSAGE, "response.completed"]
    assert "".join(event["delta"] for event in events if event["type"].endswith("delta")) == TEXT
    assert same(events[-1]["response"]) == same(whole)
    assert events[-2]["item"] == events[-1]["response"]["output"][0]
    assert {event["item_id"] for event in events if "item_id" in event} == {events[-2]["item"]["id"]}
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    chat = await http.post("/v1/chat/completions", json={"model": MODEL, "messages": messages, "temperature": 0})
    assert chat.json()["choices"][0]["message"]["content"] == TEXT
    assert len({one.prompt for one in backend.submitted}) == 1
    params = [msgspec.structs.replace(one.params, seed=None) for one in backend.submitted]
    assert params[0] == params[1] == params[2] and len({type(one.job) for one in backend.submitted}) == 1


RESOURCE = {
    *("id", "object", "created_at", "completed_at", "status", "incomplete_details", "model", "previous_response_id"),
    *("instructions", "output", "error", "tools", "tool_choice", "truncation", "parallel_tool_calls", "text", "top_p"),
    *("presence_penalty", "frequency_penalty", "top_logprobs", "temperature", "reasoning", "usage"),
    *("max_output_tokens", "max_tool_calls", "store", "background", "service_tier", "metadata", "safety_identifier"),
    "prompt_cache_key",
}
"""What Open Responses requires of a ResponseResource."""


async def test_an_answer_has_every_field_of_open_responses(http: httpx.AsyncClient) -> None:
    whole = await ask(http)
    assert whole.keys() == RESOURCE
    assert whole["text"] == {"format": {"type": "text"}} and type(whole["created_at"]) is int
    assert whole["output"][0].keys() == {"type", "id", "status", "role", "content"}
    first = (await stream(http))[0]
    assert first["response"].keys() == RESOURCE and first["response"]["status"] == "in_progress"


async def test_an_answer_says_how_it_was_made_and_nothing_of_what_was_asked(http: httpx.AsyncClient) -> None:
    whole = await ask(
        http, instructions="canary", input="canary", metadata={"canary": "canary"}, user="canary",
        top_p=0.5, presence_penalty=0.25, frequency_penalty=-0.5, temperature=0.75, max_output_tokens=9, top_logprobs=2,
    )  # fmt: skip
    said = {"top_p": 0.5, "presence_penalty": 0.25, "frequency_penalty": -0.5, "temperature": 0.75, "top_logprobs": 2}
    assert whole.items() >= {**said, "max_output_tokens": 9, "store": False, "object": "response"}.items()
    assert "canary" not in json.dumps(whole)


@pytest.mark.parametrize("level", ["open", "partitioned"])
async def test_an_answer_that_its_limit_cut_is_incomplete(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    whole = await ask(http, max_output_tokens=4)
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert whole["output"][0]["status"] == "incomplete" and whole["completed_at"] is None
    events = await stream(http, max_output_tokens=4)
    assert events[-1]["type"] == "response.incomplete" and same(events[-1]["response"]) == same(whole)
    assert {one.params.max_tokens for one in backend.submitted} == {4}


async def test_an_empty_answer_has_a_message(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    backend.answer = ""
    events = await stream(http)
    assert steps(events) == ["response.created", "response.in_progress", *MESSAGE[:2], *MESSAGE[3:], events[-1]["type"]]
    assert (await ask(http))["output"][0]["content"][0]["text"] == ""


async def test_logprobs_come_with_the_text(http: httpx.AsyncClient) -> None:
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "max_output_tokens": 3}
    scores = (await ask(http, **asked))["output"][0]["content"][0]["logprobs"]
    assert [score["token"] for score in scores] == ["H", "e", "l"]
    assert [len(score["top_logprobs"]) for score in scores] == [2] * 3 and scores[0]["bytes"] == [ord("H")]
    events = await stream(http, **asked)
    assert [one for event in events if event["type"].endswith("delta") for one in event["logprobs"]] == scores


async def test_stop_strings_seeds_and_cloisters_fields_mean_what_they_do_in_a_chat(
    http: httpx.AsyncClient, backend: FakeBackend
) -> None:
    answer = await http.post(PATH, json=body_of(stop=["world"], protection="isolated", session="s", seed=3, min_p=0.1))
    assert answer.json()["output"][0]["content"][0]["text"] == "Hello, "
    assert answer.headers["x-cloister-protection"] == "isolated" and answer.headers["x-cloister-session"] == "s"
    sent = backend.submitted[0]
    assert (sent.job.level, sent.params.seed, sent.params.min_p) == ("isolated", 3, 0.1)
    view = await http.get(f"/v1/requests/{answer.json()['id']}/view")
    assert view.json()["protection"] == "isolated"


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_error_before_the_answer_has_its_status_and_this_paths_names(
    http: httpx.AsyncClient, backend: FakeBackend, streamed: bool
) -> None:
    for fields, status, param in (
        ({"model": "gpt-9"}, 404, "model"),
        ({"temperature": 9}, 400, "temperature"),
        ({"max_output_tokens": 0}, 400, "max_output_tokens"),
        ({"input": []}, 400, "input"),
        ({"input": [{"role": "wizard", "content": "a"}]}, 400, "input"),
        ({"input": [{"role": "user", "content": "<confidential>a", "public": True}]}, 400, "input"),
        ({"text": {"format": {"type": "wizardry"}}}, 400, "text"),
        ({"protecton": "open"}, 400, "protecton"),
        ({"store": True}, 400, "store"),
    ):
        refused = await http.post(PATH, json=body_of(stream=streamed, **fields))
        assert (refused.status_code, refused.json()["error"]["param"]) == (status, param), refused.text
        assert "messages" not in refused.text
    backend.fails = lambda: PromptTooLong("messages: too long.", param="messages")
    refused = await http.post(PATH, json=body_of(stream=streamed))
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, "input: too long.")


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (ServiceUnavailable("Away."), "server_error"),
        (QueueFull("Full."), "rate_limit_exceeded"),
        (KeyError("canary"), ""),
    ],
)
async def test_an_error_in_a_stream_is_its_last_event(
    http: httpx.AsyncClient, backend: FakeBackend, failure: Exception, code: str
) -> None:
    backend.fails, backend.fails_after = lambda: failure, 3
    text = (await http.post(PATH, json=body_of(stream=True))).text
    last = events_of(text)[-1]
    assert last["type"] == "response.failed" and last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == (code or "server_error") and "canary" not in text
    assert last["response"]["output"][0]["content"][0]["text"] == "Hel" and "[DONE]" not in text


async def test_nothing_is_found_again(http: httpx.AsyncClient) -> None:
    name = (await ask(http))["id"]
    for method in ("GET", "DELETE"):
        gone = await http.request(method, f"{PATH}/{name}")
        assert gone.status_code == 404 and gone.json()["error"]["type"] == "invalid_request_error"
    assert (await http.get(f"{PATH}/{name}", headers={"Authorization": "Bearer wrong"})).status_code == 401


def test_leaving_a_stream_cancels_it(url: str, backend: FakeBackend) -> None:
    backend.ends, backend.pause = False, 0.01
    with httpx.stream("POST", url + PATH, json=body_of(stream=True), headers=KEY) as response:
        for line in response.iter_lines():
            if '"delta":"H"' in line:
                assert backend.open == 1
                break
    for _ in range(1000):
        if backend.open == 0:
            break
        threading.Event().wait(0.01)
    assert backend.cancelled == 1 and backend.open == 0


def call(name: str, arguments: str, *, begins: bool = True, ends: bool = True) -> CallPiece:
    return CallPiece(0, f"call_{name}", name, arguments, begins, ends)


def said(text: str = "", finish: Any = None, calls: Any = (), reasoning: str = "") -> Any:
    new = {"text": text, "scores": None, "finish": finish, "progress": None, "calls": calls, "reasoning": reasoning}
    return SimpleNamespace(**new)


CALLED = [
    said(reasoning="Where"),
    said(reasoning=" is he?"),
    said("I "),
    said("look."),
    said(calls=[call("look", '{"at":"Ulm"}')]),
    said(finish="tool_calls", calls=[call("find", "{}")]),
]
THOUGHT = [
    *("response.output_item.added", "response.reasoning_text.delta"),
    *("response.reasoning_text.done", "response.output_item.done"),
]


def reply() -> ResponsesReply:
    made = ResponsesReply(MODEL, 1, ByteTokenizer(), include_usage=False)  # type: ignore[arg-type]
    return made


USAGE = ChatUsage(1, 2, 3, PromptTokensDetails(0))


def test_thoughts_words_and_calls_are_items_one_after_the_other() -> None:
    one = reply()
    text = one.opening(0) + b"".join(one.events(0, delta) for delta in CALLED) + one.closing(USAGE)
    events = events_of(text.decode())
    middle = [*THOUGHT, *MESSAGE, *CALL, *CALL]
    assert steps(events) == ["response.created", "response.in_progress", *middle, "response.completed"]
    items = events[-1]["response"]["output"]
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call", "function_call"]
    assert [item["content"][0]["text"] for item in items[:2]] == ["Where is he?", "I look."]
    assert [(item["name"], item["arguments"], item["call_id"]) for item in items[2:]] == [
        ("look", '{"at":"Ulm"}', "call_look"),
        ("find", "{}", "call_find"),
    ]
    assert [event["output_index"] for event in events if event["type"] == MESSAGE[0]] == [0, 1, 2, 3]
    whole = reply()
    together = said("I look.", "tool_calls", [one for delta in CALLED for one in delta.calls], "Where is he?")
    assert same(json.loads(whole.whole([together], USAGE))) == same(events[-1]["response"]), "whole and streamed agree"


def test_a_call_in_pieces_is_one_item() -> None:
    pieces = [
        call("look", "", ends=False),
        call("look", '{"at":', begins=False, ends=False),
        call("look", "1}", begins=False),
    ]
    one = reply()
    text = one.opening(0) + b"".join(one.events(0, said(calls=[each])) for each in pieces)
    events = events_of((text + one.events(0, said(finish="tool_calls")) + one.closing(USAGE)).decode())
    assert [event["delta"] for event in events if event["type"].endswith("arguments.delta")] == ['{"at":', "1}"]
    [item] = events[-1]["response"]["output"]
    assert (item["arguments"], item["status"], item["call_id"]) == ('{"at":1}', "completed", "call_look")


def test_a_call_without_words_is_the_only_item() -> None:
    whole = json.loads(reply().whole([said("", "tool_calls", [call("look", "{}")])], USAGE))
    assert [item["type"] for item in whole["output"]] == ["function_call"] and whole["status"] == "completed"


def test_where_other_streams_have_news_the_shown_one_has_an_event() -> None:
    one = reply()
    thought, word = said(reasoning="Hm."), Delta("a", None, "stop")
    pieces = [one.opening(0), one.quiet(0), one.events(0, thought), one.quiet(0), one.events(0, word), one.quiet(0)]
    events = events_of(b"".join((*pieces, one.closing(USAGE))).decode())
    assert all(pieces) and [event["delta"] for event in events if event["type"].endswith("delta")] == ["Hm.", "a", ""]
    assert [item["content"][0]["text"] for item in events[-1]["response"]["output"]] == ["Hm.", "a"]


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=DEVELOPMENT_KEY, max_retries=0) as client:
        yield client


def test_the_official_client(client: openai.OpenAI, backend: FakeBackend) -> None:
    answer = client.responses.create(model=MODEL, input="Hi", temperature=0, extra_body={"protection": "open"})
    assert answer.output_text == TEXT and answer.usage and answer.usage.output_tokens == len(TEXT) + 1
    history: Any = [{"role": "user", "content": "Hi"}, *answer.output, {"role": "user", "content": "And?"}]
    again = client.responses.create(model=MODEL, input=history, store=False)
    assert again.status == "completed"
    turns = "<user>Hi<assistant>" + TEXT + "<user>And?<assistant>"
    assert bytes(backend.submitted[-1].prompt).decode() == turns
    with client.responses.stream(model=MODEL, input="Hi", temperature=0) as events:
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == TEXT == events.get_final_response().output_text
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=MODEL, input="Hi", previous_response_id=answer.id)
    assert refused.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)


async def test_the_asynchronous_client(url: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=DEVELOPMENT_KEY, max_retries=0) as client:
        answers = await asyncio.gather(
            *(client.responses.create(model=MODEL, input=f"Hi {n}", temperature=0) for n in range(4))
        )
    assert {answer.output_text for answer in answers} == {TEXT} and len({answer.id for answer in answers}) == 4
