"""Verified decoding with real processes: answers are the unverified ones, and a killed service loses none of them."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic

import pytest
import pytest_asyncio

from cloister.backend.base import VaultJob
from cloister.errors import Deviation, ServiceUnavailable, VaultLost
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


HONEST_TOKENS, HONEST_S = 1_000_000, float(os.environ.get("CLOISTER_HONEST_S", "600"))
AT_ONCE, APART_S = 16, 30.0  # requests; seconds between two ends of a service
CHUNKS = (16, 64)  # tokens that a vault is sent at once, on a CPU and a GPU


@dataclass
class Honest:
    """What came back while nothing cheated. An answer that deviated fails the test."""

    tokens: int = 0
    answers: int = 0
    refused: int = 0  # or ended, with a service that was killed
    kills: int = 0
    serving: set[RealNode] = field(default_factory=set, repr=False)  # since the last end of its service

    async def ask(self, nodes: Sequence[RealNode], draw: random.Random, until: float) -> None:
        """Requests of random lengths and parameters, one after another, some in a kept session."""
        kept = f"{draw.random()}"
        while self.tokens < HONEST_TOKENS and monotonic() < until:
            text = "".join(chr(draw.randrange(32, 127)) for _ in range(draw.randrange(5, 90)))
            params = SamplingParams(
                max_tokens=draw.choice((1, 2, 15, 16, 17, 33, 65, 200, 400)),
                temperature=draw.choice((0.0, 0.7, 1.3)),
                seed=draw.randrange(1 << 31),
                logprobs=draw.choice((None, 0, 5)),
                frequency_penalty=draw.choice((0.0, 0.5)),
                stop_tokens=draw.choice(((), (), (), (7,))),
            )
            node, keep, name = draw.choice(nodes), draw.random() < 0.5, f"{draw.random()}"
            tenant = kept if keep else name
            try:
                stream = await node.client.generate(tenant, private(text, tenant, keep=keep), params)
                async for part in stream:
                    self.tokens += len(part.tokens)
                self.answers += 1
                self.serving.add(node)
            except Deviation:
                raise
            except (ServiceUnavailable, VaultLost):
                self.refused += 1
                kept = name  # answers of a tenant with three troubles are its vaults' alone: nothing to compare
                await asyncio.sleep(0.5)

    async def kill(self, nodes: Sequence[RealNode], draw: random.Random) -> None:
        while True:
            await asyncio.sleep(APART_S)
            node = draw.choice(nodes)
            service = node.controller.compute.service
            if node in self.serving and service is not None and service._handle.pid is not None:
                node.controller.relay._node.verification.longest = draw.choice(CHUNKS)
                os.kill(service._handle.pid, signal.SIGKILL)
                self.serving.remove(node)
                self.kills += 1


@pytest.mark.release
@pytest.mark.timeout(3600)
async def test_honest_tokens_raise_no_alarm(
    nodes: dict[str, RealNode], caplog: pytest.LogCaptureFixture, record_property: Callable[[str, object], None]
) -> None:
    """A million, or as many as fit ten minutes, with random neighbours, chunks and ends of the service."""
    verified, honest, until = [nodes["all"], nodes["late"]], Honest(), monotonic() + HONEST_S
    killer = asyncio.create_task(honest.kill(verified, random.Random(37)))
    await asyncio.gather(*(honest.ask(verified, random.Random(number), until) for number in range(AT_ONCE)))
    killer.cancel()
    record_property("honest", repr(honest))
    assert honest.answers and "deviated" not in caplog.text
