"""Private layers with real processes: answers are those without, verified or not, and what cannot have them says so."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from cloister.backend.base import OpenJob
from cloister.config import ControllerSettings, EngineSettings, GatewaySettings, Settings
from cloister.errors import SetupError
from cloister.messages.types import SamplingParams
from cloister.models.source import ModelFolder
from tests.controller.node import ENGINE, RealNode, private
from tests.controller.test_process import ENDLESS, TEXT, answer, service_is_back
from tests.controller.test_verified_node import PARAMS, SAMPLED, hidden_job, leave_to_vaults, scored
from tests.forkserver.model import save_model

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return save_model(tmp_path_factory.mktemp("tiny"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def nodes(tiny: ModelFolder) -> AsyncIterator[dict[int, RealNode]]:
    found = {}
    for layers, verify in ((0, "off"), (1, "off"), (2, "all")):
        engine = ENGINE.model_copy(update={"private_layers": layers})
        found[layers] = await RealNode.start(tiny, engine, spare_vaults=1, verify=verify)
    yield found
    for node in found.values():
        await node.close()


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
@pytest.mark.parametrize("layers", [1, 2])
async def test_an_answer_is_the_one_without(nodes: dict[int, RealNode], layers: int, params: SamplingParams) -> None:
    expected = await answer(nodes[0], private(TEXT, "a"), params)
    assert await answer(nodes[layers], private(TEXT, "a"), params) == expected
    assert len(expected) == params.max_tokens


@pytest.mark.parametrize("layers", [1, 2])
async def test_alone_a_vaults_answer_is_the_one_without(
    nodes: dict[int, RealNode], layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await answer(nodes[0], private(TEXT, "a"), SAMPLED)
    leave_to_vaults(nodes[layers], monkeypatch)
    assert await answer(nodes[layers], private(TEXT, "a"), SAMPLED) == expected


@pytest.mark.parametrize("layers", [1, 2])
async def test_many_at_once_beside_open_ones(nodes: dict[int, RealNode], layers: int) -> None:
    texts = [TEXT + "!" * number for number in range(6)]
    jobs = [private(text, f"s{number // 2}") for number, text in enumerate(texts)]
    expected = [await answer(nodes[0], job, SAMPLED) for job in jobs]
    opened = [OpenJob(tuple(text.encode())) for text in texts]
    beside = [await answer(nodes[0], job, SAMPLED) for job in opened]
    found = await asyncio.gather(*(answer(nodes[layers], job, SAMPLED) for job in (*jobs, *opened)))
    assert found == [*expected, *beside]


@pytest.mark.parametrize("layers", [1, 2])
async def test_hidden_among_others(nodes: dict[int, RealNode], layers: int) -> None:
    expected = await scored(nodes[0], hidden_job(), SAMPLED)
    found = await scored(nodes[layers], hidden_job(), SAMPLED)
    assert sorted((number, token) for number, _, token in found) == sorted(
        (number, token) for number, _, token in expected
    )


async def test_a_killed_service_begins_a_verified_answer_again(nodes: dict[int, RealNode]) -> None:
    node = nodes[2]
    expected = await answer(nodes[0], private(TEXT, "k"), ENDLESS)
    found: list[int] = []
    killed = False
    async for part in await node.client.generate("tenant", private(TEXT, "k", keep=True), ENDLESS):
        found += part.tokens
        if len(found) > 40 and not killed:
            killed = True
            service = node.controller.compute.service
            assert service is not None and service._handle.pid is not None
            os.kill(service._handle.pid, signal.SIGKILL)
    assert found == expected and killed
    await service_is_back(node)


async def test_what_the_fork_server_refuses_stops_the_start(tiny: ModelFolder) -> None:
    """Which models and counts it refuses: link/test_private_layers.py."""
    with pytest.raises(SetupError, match="fewer can be private"):
        await RealNode.start(tiny, ENGINE.model_copy(update={"private_layers": 3}))


async def test_guesses_need_a_beat_and_a_vault_here() -> None:
    guessing, beat = EngineSettings(speculate=3), GatewaySettings(beat_ms=150)
    Settings(engine=guessing, gateway=beat)
    with pytest.raises(SetupError, match="which guesses came true"):
        Settings(engine=guessing)
    with pytest.raises(SetupError, match="which guesses came true"):
        Settings(engine=guessing, gateway=beat, controller=ControllerSettings(vault_host="10.0.0.2:7000"))


async def test_vaults_elsewhere_have_none() -> None:
    with pytest.raises(SetupError, match="another machine"):
        Settings(engine=EngineSettings(private_layers=1), controller=ControllerSettings(vault_host="10.0.0.2:7000"))
