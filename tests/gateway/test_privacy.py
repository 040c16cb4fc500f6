"""No prompt, answer or key is ever logged, counted or quoted in an error."""

from __future__ import annotations

import json
import logging
from typing import Any

import httpx
import pytest

from cloister.errors import ServiceUnavailable
from tests.gateway.fakes import KEY, MODEL, FakeBackend, chat_body, completion_body

CANARY = "canary-7f3a-of-the-user"

TOOLS = [{"type": "function", "function": {"name": CANARY, "parameters": {"properties": {CANARY: {}}}}}]
ARGUMENTS = json.dumps({CANARY: CANARY})
CALL = {"id": CANARY, "type": "function", "function": {"name": CANARY, "arguments": ARGUMENTS}}
CALLED = [
    {"role": "user", "content": CANARY},
    {"role": "assistant", "tool_calls": [CALL], "reasoning": CANARY},
    {"role": "tool", "tool_call_id": CANARY, "content": CANARY},
]


FIELDS: list[dict[str, Any]] = [
    {},
    {"stream": True, "instructions": CANARY},
    {"input": [{"type": CANARY}]},
    {"input": [{"role": "user", "content": [{"type": CANARY}]}]},
    {"input": [{"role": "user", "content": f"<confidential>{CANARY}", "public": True}]},
    {"input": [{"type": "function_call_output", "call_id": CANARY, "output": CANARY}]},
    {"tools": [{"type": "function", "name": CANARY, "parameters": {CANARY: CANARY}}]},
    {"tools": [{"type": CANARY}], "tool_choice": {"type": CANARY}},
    {"text": {CANARY: CANARY}},
    {"text": {"format": {"type": "json_schema", "name": CANARY, "schema": {CANARY: CANARY}}}},
    {"previous_response_id": CANARY},
    {"include": [CANARY], "reasoning": {CANARY: CANARY}, "metadata": {CANARY: CANARY}},
]


def requests() -> list[bytes]:
    """Good and bad bodies, each with the canary in it wherever a user can put text."""
    bodies = [
        chat_body(messages=[{"role": "user", "content": CANARY}]),
        chat_body(messages=[{"role": "user", "content": CANARY}], stream=True),
        chat_body(messages=[{"role": "user", "content": CANARY}], protection="open"),
        chat_body(messages=[{"role": "user", "content": CANARY}], protection="isolated"),
        chat_body(messages=[{"role": "user", "content": f"<confidential>{CANARY}", "public": True}]),
        chat_body(messages=[{"role": "user", "content": f"<confidential>{CANARY}", "public": True}], protection="open"),
        chat_body(session=f"{CANARY} with spaces"),
        chat_body(messages=[{"role": CANARY, "content": CANARY}]),
        chat_body(messages=CANARY),
        chat_body(messages=[{"role": "user", "content": [{"type": CANARY, "text": CANARY}]}]),
        chat_body(messages=[{"role": "user", "content": {CANARY: CANARY}}]),
        chat_body(model=CANARY),
        chat_body(temperature=CANARY),
        chat_body(logit_bias={CANARY: 1}),
        chat_body(logit_bias={"1": CANARY}),
        chat_body(stop=[CANARY] * 20),
        chat_body(stop={CANARY: CANARY}),
        chat_body(protection=CANARY),
        chat_body(response_format={"type": CANARY}),
        chat_body(stream_options={CANARY: CANARY, "include_usage": CANARY}),
        chat_body(messages=[{"role": "user", "content": CANARY * 500}]),
        chat_body(messages=CALLED, tools=TOOLS, chat_template_kwargs={"word": CANARY}),
        chat_body(messages=CALLED, tools=TOOLS, stream=True, protection="open"),
        chat_body(tools=TOOLS, tool_choice={"type": "function", "function": {"name": CANARY}}),
        chat_body(tools=[{"type": CANARY}], tool_choice=CANARY),
        chat_body(chat_template_kwargs={f"{CANARY} ": CANARY}),
        chat_body(messages=[{**CALLED[1], "role": "user"}]),
        {CANARY: CANARY},
        *({"model": MODEL, "input": CANARY, **fields} for fields in FIELDS),
    ]
    raw = [json.dumps(body).encode() for body in bodies]
    broken = raw[0][: raw[0].index(CANARY.encode()) + 10]
    return [*raw, broken, broken + b"\xff", f'{{"{CANARY}": {CANARY}}}'.encode(), CANARY.encode()]


def test_logs_errors_and_metrics_never_quote_the_user(
    url: str, backend: FakeBackend, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("", "uvicorn.error", "uvicorn.access", "uvicorn.asgi", "asyncio"):
        caplog.set_level(logging.DEBUG, name)
    headers = {**KEY, "content-type": "application/json"}
    statuses = set()
    # httpx in this process logs request lines too: paths hold no canary, and what the client logs is not the server's.
    with httpx.Client(base_url=url) as client:
        for raw in requests():
            for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
                response = client.post(path, content=raw, headers=headers)
                statuses.add(response.status_code)
                if response.status_code != 200:
                    assert CANARY not in response.text
        client.post("/v1/completions", json=completion_body(prompt=[CANARY, 1]), headers=headers)
        client.post("/v1/completions", json=completion_body(), headers={"authorization": f"Bearer {CANARY}"})
        client.post("/v1/completions", json=completion_body(), headers={**KEY, "x-cloister-protection": CANARY})
        client.post("/v1/completions", json=completion_body(), headers={**KEY, "x-cloister-session": f"{CANARY} x"})
        backend.answer = f"{CANARY} said"
        client.post("/v1/completions", json=completion_body(prompt=CANARY), headers=headers)
        for failure in (ValueError(f"cannot digest {CANARY}"), ServiceUnavailable("Away.")):
            for after in (None, 3):
                for stream in (False, True):
                    backend.fails, backend.fails_after = lambda failure=failure: failure, after
                    body = completion_body(prompt=CANARY, stream=stream)
                    response = client.post("/v1/completions", json=body, headers=headers)
                    statuses.add(response.status_code)
                    assert f"digest {CANARY}" not in response.text
        metrics = client.get("/metrics", headers=KEY).raise_for_status().text
    assert {200, 400, 404, 500, 503} <= statuses
    assert CANARY not in metrics
    assert CANARY not in caplog.text
    assert "Unexpected ValueError at" in caplog.text, "the log does tell what went wrong and where"
    assert "digest" not in caplog.text
    printed = capfd.readouterr()
    assert CANARY not in printed.out + printed.err


async def test_an_unexpected_error_outside_the_backend_is_told_by_type_and_place_only(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from tests.gateway.fakes import ByteTokenizer

    def broken(self: ByteTokenizer, text: str, add_special_tokens: bool = False) -> list[int]:
        raise KeyError(text)

    monkeypatch.setattr(ByteTokenizer, "encode", broken)
    response = await http.post("/v1/completions", json={"model": MODEL, "prompt": CANARY, "protection": "open"})
    assert response.status_code == 500
    assert response.json()["error"] == {
        "message": "The server met an unexpected error.",
        "type": "server_error",
        "param": None,
        "code": "internal_error",
    }
    assert "KeyError" in caplog.text and "test_privacy.py" in caplog.text
    assert CANARY not in caplog.text
