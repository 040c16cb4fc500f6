"""Streaming clients, many of whom leave at random: nothing hangs, nothing leaks, who stays gets the answer."""

from __future__ import annotations

import asyncio
import random
import re
import time

import httpx
import msgspec
import pytest

from tests.serving.prompts import make_prompts

KEY = {"Authorization": "Bearer cloister-dev"}
PROMPTS = make_prompts(24, seed=21)


def body(prompt: str) -> dict[str, object]:
    return {"model": "SmolLM2-135M-Instruct", "prompt": prompt, "max_tokens": 16, "temperature": 0, "stream": True}


async def stream_text(client: httpx.AsyncClient, prompt: str, leave_after: int | None = None) -> str | None:
    """The streamed text, or None for a client that left."""
    text = ""
    async with client.stream("POST", "/v1/completions", json=body(prompt)) as response:
        assert response.status_code == 200, response.status_code
        pieces = 0
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                return text
            if line:
                text += msgspec.json.decode(line[6:])["choices"][0]["text"]
                pieces += 1
            if leave_after is not None and pieces >= leave_after:
                return None
    raise AssertionError("the stream ended without [DONE]")


async def gauge(client: httpx.AsyncClient, name: str) -> float:
    text = (await client.get("/metrics")).text
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    assert found, name
    return float(found[1])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("clients", "seconds"), [(8, 2), pytest.param(200, 120, marks=pytest.mark.release)])
async def test_clients_come_and_go(clients: int, seconds: int, short_server: str) -> None:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=short_server, headers=KEY, limits=limits, timeout=900) as client:
        prompts = PROMPTS[: max(2, clients // 5)]
        expected = {prompt: await stream_text(client, prompt) for prompt in prompts}
        end = time.monotonic() + seconds
        stayed = left = 0

        async def visit(seed: int) -> None:
            nonlocal stayed, left
            draw = random.Random(seed)
            while time.monotonic() < end or min(stayed, left) <= clients / 2:
                prompt = draw.choice(prompts)
                leave_after = draw.choice((None, None, 0, 1, 3, 9))
                text = await stream_text(client, prompt, leave_after)
                if leave_after is None:
                    assert text == expected[prompt]
                    stayed += 1
                else:
                    left += 1

        await asyncio.gather(*(visit(seed) for seed in range(clients)))
        async with asyncio.timeout(60):
            while await gauge(client, "cloister_running") or await gauge(client, "cloister_waiting"):
                await asyncio.sleep(0.1)
        assert await gauge(client, "cloister_kv_blocks_used") == 0
        assert await stream_text(client, PROMPTS[0]) == expected[PROMPTS[0]]
