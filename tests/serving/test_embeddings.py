"""Embeddings of the whole node, through the official client and the verifying one: the same bits at every level."""

from __future__ import annotations

import asyncio
import math
import threading
from typing import Any

import httpx
import openai
import pytest

import cloister
from cloister.config import DEVELOPMENT_KEY
from tests.client.local_proxy import proxy_to
from tests.served import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LEVELS = ("open", "shared", "partitioned", "isolated")
CANARY = "canary-5b7e-of-the-user"
TEXTS = [f"{CANARY} number {number}: {'so it goes on ' * (2 * number)}" for number in range(12)]


@pytest.fixture(scope="module")
def plain(tiny_server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{tiny_server.url()}/v1", api_key=DEVELOPMENT_KEY, max_retries=0)


def model_of(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def asked(client: openai.OpenAI, texts: Any, level: str, **fields: Any) -> list[list[float]]:
    got = client.embeddings.create(model=model_of(client), input=texts, extra_body={"protection": level}, **fields)
    assert [entry.index for entry in got.data] == list(range(len(got.data)))
    return [entry.embedding for entry in got.data]


@pytest.fixture(scope="module")
def alone(plain: openai.OpenAI) -> list[list[float]]:
    return [asked(plain, text, "open")[0] for text in TEXTS]


@pytest.mark.parametrize("level", LEVELS)
def test_the_bits_are_the_same_alone_and_among_others_at_every_level(
    plain: openai.OpenAI, alone: list[list[float]], level: str
) -> None:
    width = plain.models.list().data[0].embeddings["dimensions"]  # type: ignore[attr-defined]
    assert len({tuple(vector) for vector in alone}) == len(TEXTS) and {len(vector) for vector in alone} == {width}
    assert all(math.hypot(*vector) == pytest.approx(1, abs=1e-6) for vector in alone)
    stop = threading.Event()

    def talk(at: str) -> None:
        while not stop.is_set():
            plain.completions.create(
                model=model_of(plain),
                prompt="Once upon",
                max_tokens=40,
                extra_body={"protection": at, "ignore_eos": True},
            )

    neighbours = [threading.Thread(target=talk, args=(at,)) for at in ("open", "partitioned")]
    for each in neighbours:
        each.start()
    try:
        assert asked(plain, TEXTS * 3, level) == alone * 3
        assert asked(plain, TEXTS[3], level, encoding_format="float") == [alone[3]]
    finally:
        stop.set()
        for each in neighbours:
            each.join()


@pytest.mark.parametrize("level", [None, "open", "isolated"])
def test_through_the_channel_and_the_proxy(tiny_server: Server, alone: list[list[float]], level: str | None) -> None:
    url, options = tiny_server.url(), {"api_key": DEVELOPMENT_KEY, "max_retries": 0}
    body = {} if level is None else {"protection": level}
    client = cloister.Client(f"{url}/v1", allow_software_tee=True, **options)
    got = client.embeddings.create(model=model_of(client), input=TEXTS, extra_body=body)
    assert [entry.embedding for entry in got.data] == alone and got.usage.prompt_tokens > len(TEXTS)
    with pytest.raises(openai.BadRequestError):
        client.embeddings.create(model=model_of(client), input=["a", ""], extra_body=body)
    with proxy_to(url) as local:
        through = openai.OpenAI(base_url=f"{local}/v1", **options)
        got = through.embeddings.create(model=model_of(client), input=TEXTS[:2], extra_body=body, dimensions=3)
        assert all(len(entry.embedding) == 3 for entry in got.data)


async def test_the_asynchronous_clients(tiny_server: Server, alone: list[list[float]]) -> None:
    url, options = f"{tiny_server.url()}/v1", {"api_key": DEVELOPMENT_KEY, "max_retries": 0}
    sealed = await asyncio.to_thread(cloister.AsyncClient, url, allow_software_tee=True, **options)
    for client in (openai.AsyncOpenAI(base_url=url, **options), sealed):
        model = (await client.models.list()).data[0].id
        both = await asyncio.gather(*(client.embeddings.create(model=model, input=text) for text in TEXTS[:2]))
        assert [got.data[0].embedding for got in both] == alone[:2]
        await client.close()


@pytest.mark.parametrize("level", LEVELS)
def test_inputs_beyond_the_context_and_levels_without_embeddings(plain: openai.OpenAI, level: str) -> None:
    longest = plain.models.list().data[0].max_model_len  # type: ignore[attr-defined]
    assert len(asked(plain, [[5] * longest, [5]], level)) == 2
    for given in ([[5] * (longest + 1), [5]], ["x " * longest], [[10**9]]):
        with pytest.raises(openai.BadRequestError) as refused:
            asked(plain, given, level)
        assert refused.value.param == "input", refused.value.message
    marked = asked(plain, "<redacted>a</redacted>", "obfuscated")
    assert marked == asked(plain, "a", level), "a vault makes it alone"


@pytest.mark.parametrize("level", ["open", "partitioned"])
def test_a_client_that_leaves_frees_the_node(tiny_server: Server, plain: openai.OpenAI, level: str) -> None:
    headers = {"Authorization": f"Bearer {DEVELOPMENT_KEY}"}
    body = {"model": model_of(plain), "input": [[token] * 500 for token in range(5, 130)], "protection": level}
    with httpx.Client(base_url=tiny_server.url(), headers=headers) as http:
        with pytest.raises(httpx.ReadTimeout):
            http.post("/v1/embeddings", json=body, timeout=0.2)

        def idle() -> bool:
            metrics = http.get("/metrics").text
            return all(f"cloister_{name} 0.0" in metrics for name in ("running", "waiting"))

        assert any(idle() or threading.Event().wait(0.05) for _ in range(600))
    assert asked(plain, "still there", level)


def test_nothing_of_an_input_is_logged(tiny_server: Server, plain: openai.OpenAI, alone: list[list[float]]) -> None:
    with pytest.raises(openai.BadRequestError):
        asked(plain, [CANARY, ""], "open")
    assert alone and CANARY not in tiny_server.said
