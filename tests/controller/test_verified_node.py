"""Verified decoding with real processes: answers are the unverified ones, and a killed service loses none of them."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from cloister.backend.base import VaultJob
from cloister.messages.prompts import ObfuscationParams, ObfuscationSecrets, TextPrompt, write_prompt
from cloister.messages.types import SamplingParams
from cloister.models.source import ModelFolder
from tests.controller.node import RealNode, private
from tests.controller.test_process import ENDLESS, TEXT, answer, service_is_back
from tests.forkserver.model import save_model

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SAMPLED = SamplingParams(max_tokens=60, temperature=0.9, seed=4, logprobs=3, presence_penalty=0.5)
PARAMS = {
    "greedy": SamplingParams(max_tokens=40, temperature=0),
    "sampled": SAMPLED,
    "one token": SamplingParams(max_tokens=1, temperature=0),
    "two tokens": SamplingParams(max_tokens=2, temperature=0),
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return save_model(tmp_path_factory.mktemp("tiny"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def nodes(tiny: ModelFolder) -> AsyncIterator[dict[str, RealNode]]:
    found = {mode: await RealNode.start(tiny, spare_vaults=1, verify=mode) for mode in ("off", "all", "late")}
    yield found
    for node in found.values():
        await node.close()


async def scored(node: RealNode, job: VaultJob, params: SamplingParams) -> list[tuple[int, int, object]]:
    stream = await node.client.generate("tenant", job, params)
    parts = [part async for part in stream]
    return sorted(
        ((part.sequence, index, token) for part in parts for index, token in enumerate(part.tokens)),
        key=lambda each: each[0],
    )


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
@pytest.mark.parametrize("mode", ["all", "late"])
async def test_an_answer_is_the_unverified_one(nodes: dict[str, RealNode], mode: str, params: SamplingParams) -> None:
    expected = await answer(nodes["off"], private(TEXT, "a"), params)
    assert await answer(nodes[mode], private(TEXT, "a"), params) == expected
    assert len(expected) == params.max_tokens


async def test_a_node_that_verifies_nothing_verifies_an_answer_that_asks(nodes: dict[str, RealNode]) -> None:
    job = private(TEXT, "a")
    assert await answer(nodes["off"], replace(job, verify=True), SAMPLED) == await answer(nodes["off"], job, SAMPLED)


async def test_many_at_once(nodes: dict[str, RealNode]) -> None:
    jobs = [private(TEXT + "!" * number, f"s{number}") for number in range(6)]
    expected = [await answer(nodes["off"], job, SAMPLED) for job in jobs]
    assert await asyncio.gather(*(answer(nodes["all"], job, SAMPLED) for job in jobs)) == expected


def hidden_job() -> VaultJob:
    hidden = ObfuscationSecrets(bytes(32), (("Bob",), ("Eve",)))
    prompt = write_prompt(TextPrompt("My name is <redacted>Ann</redacted>, and I ask.", hidden=hidden))
    return VaultJob("obfuscated", "h", True, prompt, obfuscation=ObfuscationParams(fakes=2))


async def test_hidden_among_others(nodes: dict[str, RealNode]) -> None:
    job = hidden_job()
    expected = await scored(nodes["off"], job, SAMPLED)
    assert len(expected) == 3 * SAMPLED.max_tokens
    found = await scored(nodes["all"], job, SAMPLED)
    assert sorted((number, token) for number, _, token in found) == sorted(
        (number, token) for number, _, token in expected
    )


async def test_a_killed_service_loses_no_verified_answer(nodes: dict[str, RealNode]) -> None:
    node = nodes["all"]
    expected = await answer(nodes["off"], private(TEXT, "k"), ENDLESS)
    stream = await node.client.generate("tenant", private(TEXT, "k", keep=True), ENDLESS)
    found: list[int] = []
    killed = False
    async for part in stream:
        found += part.tokens
        if len(found) > 40 and not killed:
            killed = True
            service = node.controller.compute.service
            assert service is not None and service._handle.pid is not None
            os.kill(service._handle.pid, signal.SIGKILL)
    assert found == expected and killed
    await service_is_back(node)


def leave_to_vaults(node: RealNode, patch: pytest.MonkeyPatch) -> None:
    """All answers, as if each tenant's vaults and the service had disagreed too often."""
    patch.setattr(node.controller.relay._node.verification.deviations, "too_many_of", lambda owner: True)


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
async def test_alone_a_vaults_answer_is_the_same(
    nodes: dict[str, RealNode], params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await answer(nodes["off"], private(TEXT, "a"), params)
    leave_to_vaults(nodes["late"], monkeypatch)
    assert await answer(nodes["late"], private(TEXT, "a"), params) == expected


async def test_alone_many_at_once_and_hidden_ones_are_the_same(
    nodes: dict[str, RealNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [private(TEXT + "!" * number, f"s{number % 2}") for number in range(6)]
    expected = [await answer(nodes["off"], job, SAMPLED) for job in jobs]
    hidden = await scored(nodes["off"], hidden_job(), SAMPLED)
    leave_to_vaults(nodes["late"], monkeypatch)
    assert await asyncio.gather(*(answer(nodes["late"], job, SAMPLED) for job in jobs)) == expected
    found = await scored(nodes["late"], hidden_job(), SAMPLED)
    assert sorted((number, token) for number, _, token in found) == sorted(
        (number, token) for number, _, token in hidden
    )


async def test_an_answer_outlives_two_services_and_others_begin_without_one(
    nodes: dict[str, RealNode],
) -> None:
    node = nodes["all"]
    expected = await answer(nodes["off"], private(TEXT, "k2"), ENDLESS)
    other = await answer(nodes["off"], private(TEXT, "k3"), SAMPLED)
    meanwhile: list[asyncio.Task[list[int]]] = []
    stream = await node.client.generate("tenant", private(TEXT, "k2", keep=True), ENDLESS)
    found: list[int] = []
    killed: list[int] = []
    async for part in stream:
        found += part.tokens
        service = node.controller.compute.service
        if len(killed) < 2 and service is not None and service._handle.pid not in (None, *killed):
            os.kill(service._handle.pid, signal.SIGKILL)
            killed.append(service._handle.pid)
            while node.controller.relay.service is not None:
                await asyncio.sleep(0.001)
            meanwhile.append(asyncio.create_task(answer(node, private(TEXT, f"k{2 + len(killed)}"), SAMPLED)))
    assert await asyncio.gather(*meanwhile) == [other] * 2
    assert found == expected and len(killed) == 2
    await service_is_back(node)


@pytest.mark.release
@pytest.mark.timeout(3600)
async def test_a_million_honest_tokens_raise_no_alarm(nodes: dict[str, RealNode]) -> None:
    """Of random lengths, parameters and neighbours: a deviation would fail its answer."""
    draw, tokens, number = random.Random(37), 0, 0
    while tokens < 1_000_000:
        several = []
        for _ in range(draw.randrange(1, 13)):
            number += 1
            text = "".join(chr(draw.randrange(32, 127)) for _ in range(draw.randrange(5, 120)))
            params = SamplingParams(
                max_tokens=draw.choice((1, 2, 15, 16, 17, 33, 200, 380)),
                temperature=draw.choice((0.0, 0.7, 1.3)),
                seed=number,
                logprobs=draw.choice((None, 0, 5)),
                frequency_penalty=draw.choice((0.0, 0.5)),
            )
            several.append(answer(nodes[draw.choice(("all", "late"))], private(text, f"m{number}"), params))
        tokens += sum(map(len, await asyncio.gather(*several)))
