"""A node whose engine is another program: started, asked, killed, refused. The program has our wire and no vLLM."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from cloister.backend.base import OpenJob
from cloister.controller import process as controller_process
from cloister.controller.engine_process import digest_of_folder
from cloister.errors import InvalidRequest, LevelUnavailable, ModelUnsupported, ServiceUnavailable
from cloister.messages.types import SamplingParams
from cloister.models.source import ModelFolder
from cloister_vllm.offer import Vllm
from tests.controller.node import ENGINE, RealNode, private
from tests.forkserver.model import save_model

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
GREEDY = SamplingParams(max_tokens=4, temperature=0)
PROMPT = tuple(range(5, 45))


class Played(Vllm):
    def require(self, settings: Any, folder: Any) -> None:
        pass

    def command(self) -> list[str]:
        return [sys.executable, str(Path(__file__).with_name("fake_process.py"))]


async def start(folder: ModelFolder, *, knows: bool = False) -> RealNode:
    """`knows`: our own engine knows the model, so there are vaults."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(controller_process, "find_engine", lambda *_: Played())
        patch.setattr(controller_process, "is_plain", lambda _: knows)
        engine = ENGINE.model_copy(update={"kind": "vllm"})
        return await RealNode.start(folder, engine, allow_degraded_sandbox=True, shared_policy="none", detector=False)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return save_model(tmp_path_factory.mktemp("tiny"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tiny: ModelFolder) -> AsyncIterator[RealNode]:
    node = await start(tiny)
    yield node
    await node.close()


async def answer(node: RealNode, job: Any, params: SamplingParams = GREEDY) -> list[int]:
    return [token async for part in await node.client.generate("tenant", job, params) for token in part.tokens]


def engine_pid(node: RealNode) -> int:
    compute = node.controller.compute
    assert compute.service is not None
    pid = compute.service._handle.pid
    assert pid is not None
    return pid


async def test_it_answers_at_open_beside_others(node: RealNode) -> None:
    answers = await asyncio.gather(*(answer(node, OpenJob((at, *PROMPT), 0, "open")) for at in range(8)))
    assert answers == [[at, 5, 6, 7] for at in range(8)]
    assert node.client.ready.levels == ("open", "shared") and node.client.ready.kernels == "echo"
    assert await answer(node, OpenJob(PROMPT, 0, "shared")) == [5, 6, 7, 8]


async def test_other_levels_and_fields_are_refused_with_the_reason(node: RealNode) -> None:
    assert "vllm" in node.client.ready.why_not["partitioned"]
    with pytest.raises(LevelUnavailable):
        await answer(node, private("text", "session"))
    for params in (SamplingParams(max_tokens=0, prompt_logprobs=1), SamplingParams(grammar="x")):
        with pytest.raises((LevelUnavailable, InvalidRequest), match="does not serve it"):
            await answer(node, OpenJob(PROMPT, 0, "open"), params)


async def test_the_statement_has_the_folders_digest_and_the_missing_layers(node: RealNode, tiny: ModelFolder) -> None:
    statement = await node.controller.attestation._statement()
    assert statement.weights == digest_of_folder(tiny.path) and statement.settings.engine == "vllm"
    assert statement.missing_layers == ("no_swap",), "what the engine's process says"
    assert statement.settings.sandbox == "degraded" and statement.settings.verified == "off"


async def test_a_killed_engine_fails_its_requests_and_is_back(node: RealNode) -> None:
    before = engine_pid(node)
    running = asyncio.create_task(answer(node, OpenJob(PROMPT, 0, "open"), SamplingParams(max_tokens=80)))
    await asyncio.sleep(0)
    os.kill(before, signal.SIGKILL)
    with pytest.raises(ServiceUnavailable):
        await running
    async with asyncio.timeout(60):
        await _is_back(node)
    assert engine_pid(node) != before and await answer(node, OpenJob(PROMPT, 0, "open")) == [5, 6, 7, 8]


async def _is_back(node: RealNode) -> None:
    while True:
        with suppress(ServiceUnavailable):
            if "open" in (await node.client.stats()).levels:
                return
        await asyncio.sleep(0.05)


async def test_with_vaults_a_private_answer_goes_on_in_the_engine_and_a_verified_one_in_its_vault(
    tmp_path: Path,
) -> None:
    """Our own engine plays the other one, so that the answers can be compared."""
    folder = save_model(tmp_path)
    (folder.path / "asks").touch()
    node = await start(folder, knows=True)
    try:
        assert node.client.ready.levels == ("open", "shared", "partitioned", "isolated")
        assert "obfuscated" in node.client.ready.why_not
        compute = node.controller.compute
        alone = await answer(node, private("my words", "s1", level="isolated"))
        before = (await node.client.stats()).steps
        assert await answer(node, private("my words", "s2")) == alone
        assert (await node.client.stats()).steps == before + len(alone) - 1, "all but the first"
        verified = dataclasses.replace(private("my words", "s3"), verify=True)
        assert await answer(node, verified) == alone
        assert (await node.client.stats()).steps == before + len(alone) - 1, "its vault made it"
        pid = engine_pid(node)
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(60):
            await _is_back(node)
        assert await answer(node, private("my words", "s4")) == alone and engine_pid(node) != pid
        assert compute.has_vaults
    finally:
        await node.close()


async def test_an_engine_that_decodes_wrongly_is_not_offered(tmp_path: Path) -> None:
    folder = save_model(tmp_path)
    for name in ("asks", "lies"):
        (folder.path / name).touch()
    with pytest.raises(ModelUnsupported, match="'partitioned', fails"):
        await start(folder, knows=True)


async def test_a_model_that_it_refuses_ends_the_start_with_its_reason(tmp_path: Path) -> None:
    folder = save_model(tmp_path)
    (folder.path / "refused").touch()
    with pytest.raises(ModelUnsupported, match="does not know the model"):
        await start(folder)


async def test_the_digest_is_of_all_names_and_contents(tmp_path: Path) -> None:
    seen = set()
    for name, content in (("a", b"1"), ("a", b"2"), ("b", b"2")):
        (tmp_path / name).write_bytes(content)
        seen.add(digest_of_folder(tmp_path))
    assert len(seen) == 3
