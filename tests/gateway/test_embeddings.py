"""POST /v1/embeddings over a fake backend: what is accepted, what goes to the backend, and what comes back."""

from __future__ import annotations

import asyncio
import base64
import logging
import math
import struct
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from msgspec.structs import replace

from cloister import levels
from cloister.backend.base import OpenJob, VaultJob
from cloister.config import DEVELOPMENT_KEY
from cloister.errors import InvalidRequest, PromptTooLong, QueueFull
from cloister.gateway import embeddings
from tests.gateway.fakes import CONTEXT, KEY, LEVELS, MODEL, WIDTH, FakeBackend, vector_of

URL = "/v1/embeddings"
AT_EVERY_LEVEL = pytest.mark.parametrize("level", LEVELS)


async def ask(http: httpx.AsyncClient, given: Any, **fields: Any) -> dict[str, Any]:
    response = await http.post(URL, json={"model": MODEL, "input": given, **fields})
    assert response.status_code == 200, response.text
    return response.json()


async def refused(http: httpx.AsyncClient, given: Any = "a", status: int = 400, **fields: Any) -> dict[str, Any]:
    response = await http.post(URL, json={"model": MODEL, "input": given, **fields})
    assert response.status_code == status, response.text
    return response.json()["error"]


def numbers(length: int) -> list[float]:
    return list(struct.unpack(f"<{WIDTH}f", vector_of(length)))


@AT_EVERY_LEVEL
@pytest.mark.parametrize(
    ("given", "lengths"),
    [("ab", [2]), (["a", "abc", "ab"], [1, 3, 2]), ([1, 2, 3], [3]), ([[1], [2, 3]], [1, 2]), (["é"], [2])],
)
async def test_each_input_has_its_vector_in_order(
    http: httpx.AsyncClient, backend: FakeBackend, level: str, given: Any, lengths: list[int]
) -> None:
    got = await ask(http, given, user="someone")
    assert [entry["index"] for entry in got["data"]] == list(range(len(lengths)))
    assert [entry["embedding"] for entry in got["data"]] == [numbers(length) for length in lengths]
    assert {entry["object"] for entry in got["data"]} == {"embedding"} and got["object"] == "list"
    assert got["usage"] == {"prompt_tokens": sum(lengths), "total_tokens": sum(lengths)} and got["model"] == MODEL
    for sent in backend.submitted:
        assert sent.params.embed and sent.params.max_tokens == 0
        assert isinstance(sent.job, OpenJob if level == "open" else VaultJob) and sent.job.level == level
        assert not isinstance(sent.job, OpenJob) or not sent.job.ends, "no detector reads it"
    sessions = {sent.job.session for sent in backend.submitted if isinstance(sent.job, VaultJob)}
    assert len(sessions) == (level != "open"), "one vault reads all of them"


async def test_base64_and_fewer_dimensions(http: httpx.AsyncClient) -> None:
    whole = (await ask(http, "abc", encoding_format="base64"))["data"][0]["embedding"]
    assert base64.b64decode(whole) == vector_of(3)
    assert (await ask(http, "abc", dimensions=4.0, encoding_format="float"))["data"][0]["embedding"] == numbers(3)
    [short] = (await ask(http, "abc", dimensions=3))["data"]
    length = math.hypot(*numbers(3)[:3])
    assert short["embedding"] == pytest.approx([number / length for number in numbers(3)[:3]])
    assert math.hypot(*short["embedding"]) == pytest.approx(1)
    packed = (await ask(http, "abc", dimensions=3, encoding_format="base64"))["data"][0]["embedding"]
    assert struct.pack("<3f", *short["embedding"]) == base64.b64decode(packed)


@AT_EVERY_LEVEL
async def test_the_level_and_a_kept_session_are_in_the_headers(
    http: httpx.AsyncClient, backend: FakeBackend, level: str
) -> None:
    response = await http.post(URL, json={"model": MODEL, "input": "a", "session": "mine"})
    assert response.headers["x-cloister-protection"] == level and response.headers["x-cloister-session"] == "mine"
    [sent] = backend.submitted
    assert not isinstance(sent.job, VaultJob) or (sent.job.session, sent.job.keep) == ("mine", True)


async def test_a_verified_one_is_made_by_a_vault(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    await ask(http, "a", protection="open", verify=True)
    [sent] = backend.submitted
    assert isinstance(sent.job, VaultJob) and sent.job.level == "partitioned"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": ["a", [1]]}, "input"),
        ({"input": None}, "input"),
        ({"input": {"sealed": 1}}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": WIDTH + 1}, "dimensions"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"inputs": "a"}, "inputs"),
        ({"protection": "opne"}, "protection"),
        ({"protection": "obfuscated"}, "protection"),
        ({"stream": True}, "stream"),
    ],
)
async def test_what_is_refused(
    http: httpx.AsyncClient, backend: FakeBackend, fields: dict[str, Any], param: str
) -> None:
    error = await refused(http, fields.pop("input", "a"), **fields)
    assert error["param"] == param and not backend.submitted
    assert (await refused(http, status=404, model="another"))["code"] == "model_not_found"


async def test_levels_that_make_none_say_which_does() -> None:
    with pytest.raises(InvalidRequest, match="'isolated'") as error:
        levels.LEVELS["mpc"].refuse(embeddings.PARAMS.requested)
    assert error.value.param == "input"
    for level in LEVELS:
        levels.LEVELS[level].refuse(embeddings.PARAMS.requested)


@AT_EVERY_LEVEL
async def test_an_input_longer_than_the_context_is_refused(http: httpx.AsyncClient, level: str) -> None:
    assert (await ask(http, "x" * (CONTEXT - 1)))["usage"]["prompt_tokens"] == CONTEXT - 1
    error = await refused(http, [[7], [7] * (CONTEXT + 1)])
    assert error["code"] == "context_length_exceeded"
    assert level != "open" or (error["param"] == "input" and str(CONTEXT) in error["message"])


async def test_errors_of_a_reader_name_the_input(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    error = await refused(http, [[7, 9999]], protection="open")
    assert error["param"] == "input" and error["message"].startswith("input: ")
    backend.fails = lambda: PromptTooLong("It is too long.", param="prompt")
    assert (await refused(http))["param"] == "input"


@AT_EVERY_LEVEL
async def test_all_inputs_of_a_request_have_a_bound(
    http: httpx.AsyncClient, backend: FakeBackend, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embeddings, "MOST_TOKENS", 100)
    assert (await ask(http, ["x" * 50] * 2))["usage"]["total_tokens"] == 100
    error = await refused(http, ["x" * 51] * 2)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input") and "100" in error["message"]
    monkeypatch.setattr(embeddings, "MOST_NUMBERS", 2 * WIDTH + 1)
    assert "2 inputs" in (await refused(http, ["a"] * 3))["message"]


@AT_EVERY_LEVEL
async def test_a_bounded_number_is_with_the_engine_at_once(
    http: httpx.AsyncClient, backend: FakeBackend, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embeddings, "AT_ONCE", 4)
    most, pause = 0, asyncio.sleep

    async def noted(seconds: float) -> None:
        nonlocal most
        most = max(most, backend.open)
        await pause(0)

    monkeypatch.setattr(asyncio, "sleep", noted)
    got = await ask(http, ["x" * (1 + place % 7) for place in range(50)])
    assert [entry["embedding"] for entry in got["data"]] == [numbers(1 + place % 7) for place in range(50)]
    assert most == 4 and backend.open == 0


async def test_an_engine_that_is_full_is_an_error_and_leaves_nothing_open(
    http: httpx.AsyncClient, backend: FakeBackend
) -> None:
    backend.fails, backend.fails_after = lambda: QueueFull("Full.", retry_after=3), None
    response = await http.post(URL, json={"model": MODEL, "input": ["a"] * 200})
    assert response.status_code == 429 and response.headers["retry-after"] == "3" and backend.open == 0


def until(condition: Any) -> bool:
    return any(condition() or threading.Event().wait(0.01) for _ in range(1000))


def test_leaving_cancels_all_inputs(url: str, backend: FakeBackend) -> None:
    backend.pause = 30
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{url}{URL}", json={"model": MODEL, "input": ["a"] * 150}, headers=KEY, timeout=0.5)
    assert until(lambda: backend.open == 0)
    assert backend.cancelled == len(backend.submitted) == embeddings.AT_ONCE


async def test_models_say_what_embeds_and_metrics_count_it(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    await ask(http, ["ab", "c"], protection="isolated")
    [model] = (await http.get("/v1/models")).json()["data"]
    assert model["embeddings"] == {"dimensions": WIDTH, "pooling": "last"}
    text = (await http.get("/metrics")).text
    assert 'cloister_generations_total{level="isolated"} 1.0' in text and "cloister_prompt_tokens_total 3.0" in text


async def test_a_server_whose_model_has_no_width_says_it(
    http: httpx.AsyncClient, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = replace(backend.ready, width=0)
    monkeypatch.setattr(FakeBackend, "ready", property(lambda self: serving))
    assert (await refused(http))["param"] == "model"
    assert (await http.get("/v1/models")).json()["data"][0]["embeddings"] is None


async def test_the_description_has_it(http: httpx.AsyncClient) -> None:
    described = (await http.get("/openapi.json")).json()
    operation = described["paths"][URL]["post"]
    assert list(operation["responses"]["200"]["content"]) == ["application/json"]
    schema = described["components"]["schemas"]["EmbeddingRequest"]
    assert {"input", "model", "dimensions", "encoding_format", "protection", "session", "verify"} == set(
        schema["properties"]
    )
    assert set(schema["required"]) == {"input", "model"}
    assert "EmbeddingList" in described["components"]["schemas"]


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=DEVELOPMENT_KEY, max_retries=0) as client:
        yield client


def test_the_official_client(client: openai.OpenAI) -> None:
    """It asks for base64 by itself, and gives floats."""
    got = client.embeddings.create(model=MODEL, input=["abc", "ab"])
    assert [entry.embedding for entry in got.data] == [pytest.approx(numbers(3)), pytest.approx(numbers(2))]
    assert got.usage.total_tokens == 5
    plain = client.embeddings.create(model=MODEL, input="abc", encoding_format="float", dimensions=2, user="u")
    assert len(plain.data[0].embedding) == 2
    with pytest.raises(openai.BadRequestError):
        client.embeddings.create(model=MODEL, input=["x"] * 3000)


CANARY = "canary-7f3a-of-the-user"


def test_inputs_are_not_logged(
    url: str, backend: FakeBackend, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    bodies: list[dict[str, Any]] = [
        {"input": CANARY},
        {"input": [CANARY] * 3000},
        {"input": CANARY * 900},
        {"input": {"text": CANARY}},
        {"input": [CANARY, 1]},
        {"input": "a", "encoding_format": CANARY},
        {"input": "a", "model": CANARY},
    ]
    for body in bodies:
        for level in LEVELS:
            response = httpx.post(f"{url}{URL}", json={"model": MODEL, "protection": level, **body}, headers=KEY)
            assert CANARY not in response.text
    backend.fails = lambda: RuntimeError(CANARY)
    assert httpx.post(f"{url}{URL}", json={"model": MODEL, "input": CANARY}, headers=KEY).status_code == 500
    assert CANARY not in caplog.text and CANARY not in "".join(capfd.readouterr())
    assert len(backend.submitted) > 3
