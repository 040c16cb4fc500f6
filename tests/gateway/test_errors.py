"""Everything that can be wrong with a request has an OpenAI-shaped answer."""

from __future__ import annotations

import json
import logging
from typing import Any

import httpx
import pytest

from cloister.errors import (
    CloisterError,
    PromptTooLong,
    QueueFull,
    RequestTimeout,
    SandboxIncomplete,
    ServiceUnavailable,
    VaultLost,
)
from cloister.gateway.errors import UNEXPECTED, describe
from tests.gateway.fakes import MODEL, FakeBackend, chat_body, completion_body

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"].startswith("req_")
    return body["error"]


BAD_CHAT: list[tuple[dict[str, Any], str | None]] = [
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages"),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages"),
    ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages"),
    ({"model": 5}, "model"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": True}, "n"),
    ({"n": 10**30}, "n"),
    ({"seed": 2**63}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 4.5}, "max_tokens"),
    ({"n": 2.5}, "n"),
    ({"max_tokens": 4, "min_tokens": 5}, "min_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"stop_token_ids": [257]}, "stop_token_ids"),
    ({"stop_token_ids": ["x"]}, "stop_token_ids"),
    ({"stop_token_ids": [True]}, "stop_token_ids"),
    ({"stop_token_ids": [1] * 65}, "stop_token_ids"),
    ({"stop": ""}, "stop"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop": [1]}, "stop"),
    ({"stop": {"a": 1}}, "stop"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": 1}}, "stream_options"),
    ({"logprobs": 1}, "logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logit_bias": {"257": 1}}, "logit_bias"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"response_format": {"type": "xml"}}, "response_format"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"functions": [{}]}, "functions"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"function_call": {"name": "f"}}, "function_call"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"modalities": "text"}, "modalities"),
    ({"audio": {"voice": "alloy", "format": "wav"}}, "audio"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"protection": "shared"}, "protection"),
    ({"protection": "invisible"}, "protection"),
    ({"protection": 1}, "protection"),
    ({"session": ""}, "session"),
    ({"session": "x" * 129}, "session"),
    ({"session": "two words"}, "session"),
    ({"session": "bell\x07"}, "session"),
    ({"session": "é"}, "session"),
    ({"session": 5}, "session"),
    ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ({"messages": [{"role": "user", "content": "<confidential>x", "public": True}]}, "messages"),
    ({"messages": [{"role": "user", "content": "x", "public": "yes"}]}, "messages"),
]


@pytest.mark.parametrize("text_first", [True, False])
async def test_an_image_is_said_to_be_one(http: httpx.AsyncClient, text_first: bool) -> None:
    parts: list[Any] = [{"type": "text", "text": "a"}] * text_first + [{"type": "image_url", "image_url": {"url": "x"}}]
    response = await http.post(CHAT, json=chat_body(messages=[{"role": "user", "content": parts}]))
    assert "no images" in error_of(response)["message"] and "string" not in error_of(response)["message"]


@pytest.mark.parametrize(("fields", "param"), BAD_CHAT)
async def test_wrong_chat_fields(
    http: httpx.AsyncClient, backend: FakeBackend, fields: dict[str, Any], param: str | None
) -> None:
    response = await http.post(CHAT, json=chat_body(**fields))
    assert response.status_code == 400
    error = error_of(response)
    assert error["param"] == param and error["type"] == "invalid_request_error"
    assert not backend.submitted


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [[1], "a"]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [257]}, "prompt"),
        ({"prompt": [2**31]}, "prompt"),
        ({"prompt": [1.0]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": ["a"] * 65, "n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"prompt": "x" * 3000}, None),
    ],
)
async def test_wrong_completion_fields(
    http: httpx.AsyncClient, backend: FakeBackend, fields: dict[str, Any], param: str | None
) -> None:
    response = await http.post(COMPLETIONS, json=completion_body(**fields))
    assert response.status_code == 400, response.text
    assert error_of(response)["param"] == param
    assert not backend.submitted


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b'{"model": "fake/echo-bytes", "prompt": "\\ud800"}',
        b'{"model": "fake/echo-bytes", "prompt": "\xff\xfe"}',
        b'{"model": "fake/echo-bytes", "prompt": "x", "temperature": NaN}',
        b'{"model": "fake/echo-bytes", "prompt": "x", "temperature": Infinity}',
        b'{"model": "fake/echo-bytes", "prompt": "x", "temperature": 1e999}',
        b'{"model": "fake/echo-bytes", "prompt": "x", "seed": ' + b"9" * 5000 + b"}",
        b'{"model": "fake/echo-bytes", "prompt": ' + b"[" * 20000,
        b'{"x":' * 10000,
    ],
)
async def test_malformed_json(http: httpx.AsyncClient, raw: bytes) -> None:
    response = await http.post(COMPLETIONS, content=raw, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert error_of(response)["code"] == "invalid_request"


@pytest.mark.parametrize(
    ("path", "raw", "name"),
    [
        (CHAT, b'{%s, "protection": "partitioned", "protection": "open"}', "protection"),
        (CHAT, b'{"protection": "isolated", %s, "prote\\u0063tion": "open"}', "protection"),
        (CHAT, b'{%s, "temperature": 0, "temperature": 0}', "temperature"),
        (CHAT, b'{%s, "stream_options": {"include_usage": true, "include_usage": false}}', "include_usage"),
        (CHAT, b'{"model": "x", %s}', "model"),
        (CHAT, b'{"messages": [{"role": "user", "content": "other"}], %s}', "messages"),
        (COMPLETIONS, b'{%s, "prompt": {"text": "a", "public": false, "public": true}}', "public"),
        (COMPLETIONS, b'{%s, "prompt": "a", "prompt": "b"}', "prompt"),
    ],
)
async def test_a_field_that_is_given_twice_is_refused_and_named(
    http: httpx.AsyncClient, backend: FakeBackend, path: str, raw: bytes, name: str
) -> None:
    body = chat_body() if path == CHAT else {"model": MODEL}
    content = raw % json.dumps(body).encode()[1:-1]
    response = await http.post(path, content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text
    assert error_of(response)["param"] == name and f"'{name}' is given twice" in error_of(response)["message"]
    assert not backend.submitted


async def test_a_field_that_is_given_twice_in_a_message_is_refused_and_named(
    http: httpx.AsyncClient, backend: FakeBackend
) -> None:
    message = b'{"role": "user", "content": "a", "public": false, "public": true}'
    raw = b'{"model": "%s", "messages": [%s]}' % (MODEL.encode(), message)
    response = await http.post(CHAT, content=raw, headers={"content-type": "application/json"})
    assert response.status_code == 400 and error_of(response)["param"] == "public"
    assert not backend.submitted


async def test_a_body_that_is_not_json(http: httpx.AsyncClient) -> None:
    response = await http.post(CHAT, content=b"a=b", headers={"content-type": "application/x-www-form-urlencoded"})
    assert response.status_code == 415
    assert error_of(response)["code"] == "unsupported_media_type"
    raw = json.dumps(chat_body()).encode()
    assert (await http.post(CHAT, content=raw, headers={"content-type": "Application/JSON; charset=utf-8"})).is_success
    assert (await http.post(CHAT, content=raw)).is_success, "no content type at all is taken for JSON"


async def test_unknown_model_path_and_method(http: httpx.AsyncClient) -> None:
    response = await http.post(CHAT, json=chat_body(model="gpt-9"))
    assert response.status_code == 404
    assert error_of(response) | {"message": ""} == {
        "message": "", "type": "invalid_request_error", "param": "model", "code": "model_not_found",
    }  # fmt: skip
    assert (await http.get("/v1/nothing")).status_code == 404
    assert error_of(await http.get("/v1/nothing"))["code"] == "not_found"
    assert (await http.post(f"{CHAT}/", json=chat_body())).status_code == 404, "no redirects"
    response = await http.get(CHAT)
    assert response.status_code == 405 and response.headers["allow"] == "POST"
    assert error_of(response)["code"] == "method_not_allowed"


@pytest.mark.parametrize("header", [None, "Bearer", "Bearer wrong", "Basic cloister-dev", "cloister-dev", "Bearer é"])
@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/x", CHAT, COMPLETIONS])
async def test_a_bad_key_is_refused_before_the_body_is_read(
    http: httpx.AsyncClient, path: str, header: str | None
) -> None:
    http.headers.pop("authorization")
    headers = {} if header is None else {"authorization": header.encode()}
    method = "GET" if "models" in path else "POST"
    response = await http.request(method, path, headers=headers, content=b"not json")
    assert response.status_code == 401
    assert error_of(response)["code"] == "invalid_api_key"
    assert response.headers["www-authenticate"] == "Bearer"


FAILURES: list[tuple[Exception, int, str, str | None]] = [
    (QueueFull("Full.", retry_after=7), 429, "queue_full", "7"),
    (ServiceUnavailable("Away."), 503, "service_unavailable", "2"),
    (VaultLost.because("vault_timeout"), 503, "vault_lost", "2"),
    (RequestTimeout("Slow."), 504, "request_timeout", None),
    (PromptTooLong("Long."), 400, "context_length_exceeded", None),
    (SandboxIncomplete("A vault cannot be sealed."), 500, "sandbox_incomplete", None),
    (CloisterError("Some inside matter."), 500, "internal_error", None),
    (RuntimeError("secret detail"), 500, "internal_error", None),
]


@pytest.mark.parametrize(("failure", "status", "code", "retry"), FAILURES)
@pytest.mark.parametrize("after", [None, 0])
@pytest.mark.parametrize("streamed", [False, True])
async def test_failures_before_the_first_token_have_a_status(
    http: httpx.AsyncClient,
    backend: FakeBackend,
    failure: Exception,
    status: int,
    code: str,
    retry: str | None,
    after: int | None,
    streamed: bool,
) -> None:
    backend.fails, backend.fails_after = lambda: failure, after
    response = await http.post(CHAT, json=chat_body(stream=streamed, n=2))
    assert response.status_code == status
    assert error_of(response)["code"] == code
    assert response.headers.get("retry-after") == retry
    assert "inside matter" not in response.text and "secret" not in response.text
    assert backend.open == 0


@pytest.mark.parametrize(("failure", "status", "code", "retry"), FAILURES)
async def test_failures_in_a_stream_are_its_last_event(
    http: httpx.AsyncClient, backend: FakeBackend, failure: Exception, status: int, code: str, retry: str | None
) -> None:
    backend.fails, backend.fails_after = lambda: failure, 5
    response = await http.post(CHAT, json=chat_body(stream=True))
    assert response.status_code == 200
    events = response.text.split("\n\n")
    assert events[-1] == "" and "[DONE]" not in response.text
    assert json.loads(events[-2].removeprefix("data: "))["error"]["code"] == code
    assert json.loads(events[1].removeprefix("data: "))["choices"][0]["delta"]["content"] == "H"
    assert "secret" not in response.text


async def test_one_failing_choice_cancels_the_others(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    calls = iter([None, None, QueueFull("Full.")])
    generate = backend.generate

    async def sometimes(*args: Any) -> Any:
        if failure := next(calls):
            raise failure
        return await generate(*args)

    backend.generate = sometimes  # type: ignore[method-assign]
    backend.pause = 30
    response = await http.post(CHAT, json=chat_body(n=3))
    assert response.status_code == 429
    assert backend.open == 0 and len(backend.submitted) == 2


def test_of_what_failed_in_another_process_its_type_is_logged_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR):
        assert describe(CloisterError("The computation failed (ModuleNotFoundError).", hint="Try again.")) == (
            500,
            UNEXPECTED,
        )
        for said in ("My name is Ann.", "The computation failed (My name is Ann).", "The computation failed (Ann)."):
            assert describe(CloisterError(said)) == (500, UNEXPECTED)
    said_of = ("ModuleNotFoundError", "error")  # and no word that a process may choose
    assert [record.getMessage() for record in caplog.records] == [
        f"Unexpected {kind} in another process." for kind in said_of
    ]
