"""A gateway over a client in its own process, as `cloister mpc proxy` has it; the parties are played by the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from cloister.backend.base import OpenJob
from cloister.config import GatewaySettings
from cloister.errors import LevelUnavailable, PartyLost
from cloister.gateway.app import create_app
from cloister.messages.types import SamplingParams
from cloister.prompts.reading import PromptReading
from cloister_mpc.client.backend import ClientBackend
from cloister_mpc.client.client import Client
from tests.cloister_mpc.client.fake_parties import VOCABULARY, FakeParties
from tests.gateway.fakes import KEY, MODEL, ByteTokenizer

CONTEXT = 128
TOKENIZER = ByteTokenizer()


@pytest.fixture
async def parties() -> FakeParties:
    return FakeParties()


@pytest.fixture
async def backend(parties: FakeParties) -> AsyncIterator[ClientBackend]:
    reading = PromptReading(TOKENIZER, VOCABULARY, CONTEXT)
    backend = ClientBackend(
        lambda say: Client(parties, reading, say, max_context=CONTEXT, draft_tokens=3), VOCABULARY, CONTEXT
    )
    yield backend
    await backend.close()


@pytest.fixture
async def http(backend: ClientBackend) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(backend, TOKENIZER, MODEL, GatewaySettings(), created=1)
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 5))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=KEY) as client:
        yield client


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "Once upon", "temperature": 0, "max_tokens": 8, **fields}


async def test_mpc_is_the_level_there_is_and_the_default(http: httpx.AsyncClient, parties: FakeParties) -> None:
    response = await http.post("/v1/completions", json=body(ignore_eos=True))
    assert response.status_code == 200 and response.headers["X-Cloister-Protection"] == "mpc"
    expected = TOKENIZER.decode(parties.greedy(tuple(b"Once upon"), 8))
    assert response.json()["choices"][0]["text"] == expected.removesuffix("�"), "half a character is not sent"
    assert response.json()["usage"] == {
        **{"prompt_tokens": 9, "completion_tokens": 8, "total_tokens": 17},
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert parties.open_now == 0
    refused = await http.post("/v1/completions", json=body(protection="open"))
    assert refused.json()["error"]["code"] == "protection_unavailable"


async def test_it_streams_with_progress(http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/completions", json=body(stream=True))
    assert ": token 1, layer 0 of 4" in response.text and response.text.endswith("data: [DONE]\n\n")


async def test_what_goes_wrong_has_its_status(http: httpx.AsyncClient, parties: FakeParties) -> None:
    too_long = await http.post("/v1/completions", json=body(prompt="x" * CONTEXT, max_tokens=1))
    assert too_long.status_code == 400 and too_long.json()["error"]["code"] == "context_length_exceeded"
    parties.fails = PartyLost("Party 2 was lost.")
    lost = await http.post("/v1/completions", json=body())
    assert lost.status_code == 503 and lost.json()["error"]["code"] == "party_lost"
    assert (await http.get("/metrics")).status_code == 200


async def test_who_leaves_is_forgotten_at_the_parties(backend: ClientBackend, parties: FakeParties) -> None:
    from cloister.backend.base import VaultJob
    from cloister.messages.prompts import TextPrompt, write_prompt

    parties.may_go_on.clear()
    job = VaultJob("mpc", "s", False, write_prompt(TextPrompt("hello")))
    stream = await backend.generate("ann", job, SamplingParams())
    await anext(stream)
    assert parties.open_now == 1 and (await backend.stats()).running == 1
    await stream.aclose()
    async with asyncio.timeout(5):
        while parties.open_now:
            await asyncio.sleep(0)
    assert (await backend.stats()).running == 0


async def test_it_serves_nothing_in_the_clear(backend: ClientBackend) -> None:
    with pytest.raises(LevelUnavailable):
        await backend.generate("ann", OpenJob((1, 2)), SamplingParams())
    assert not (await backend.view(1)).known
