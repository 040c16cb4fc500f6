"""The node's own test of itself: sound levels pass and leave nothing behind; broken ones are found, by level.

Service and vaults are played here; in the last tests they are real, and their code is broken on purpose.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import psutil
import pytest

from cloister.controller.rehearsal import OTHER, SUBJECT, Rehearsal
from cloister.controller.requests import REHEARSAL
from cloister.engine.base import EngineRequest
from cloister.errors import ModelUnsupported, QueueFull
from cloister.messages.controller_service import ForgetTenant, GeneratePartitioned, GeneratePrompt, GenerateVariants
from cloister.messages.controller_vault import (
    AssignPrompt,
    CoresDone,
    FirstToken,
    LeaseCores,
    Prefilled,
    PromptAccepted,
    WantCores,
)
from cloister.messages.generation import Accepted, AskStats, Cancel, Failed, Stats, Tokens
from cloister.messages.types import TokenLogprob
from cloister.models.source import ModelFolder
from cloister.service.process import request_of
from tests.controller import fakes
from tests.controller.fakes import SERVING, Node
from tests.controller.node import ENGINE, RealNode
from tests.forked import forking
from tests.forkserver.model import save_model
from tests.forkserver.packed import sealed_once

LEVELS = SERVING.levels
Fault = Callable[["PlayedService", EngineRequest, int], int | Failed]


def sound(service: PlayedService, asked: EngineRequest, number: int) -> int | Failed:
    return 10 + number


def fails_in_company(service: PlayedService, asked: EngineRequest, number: int) -> int | Failed:
    if len(service.running) > 1 and asked.tenant == REHEARSAL:
        return Failed(asked.request_id, "internal_error", "Shapes do not match.")
    return 10 + number


def sees_its_neighbours(service: PlayedService, asked: EngineRequest, number: int) -> int | Failed:
    return 10 + number + (len(service.running) > 1)


def fails_always(service: PlayedService, asked: EngineRequest, number: int) -> int | Failed:
    return Failed(asked.request_id, "internal_error", "It cannot compute.")


class PlayedService(fakes.FakeService):
    """Gives every running request a token a turn; `fault` says which."""

    fault: Fault = staticmethod(sound)

    def put(self, message: msgspec.Struct) -> None:
        match message:
            case GeneratePrompt() | GeneratePartitioned() | GenerateVariants():
                request = request_of(message)
                self.asked.append(request)
                self.running[message.request_id] = (request, len(request.partitions) and 1)
                self.say(Accepted(message.request_id))
                if len(self.running) == 1:
                    self._turn_soon()
            case Cancel():
                self.running.pop(message.request_id, None)
            case ForgetTenant():
                self.forgotten.add(message.tenant)
            case _:
                super().put(message)

    def __init__(self, *given: object) -> None:
        self.running: dict[int, tuple[EngineRequest, int]] = {}
        self.asked: list[EngineRequest] = []
        self.forgotten: set[str] = set()
        super().__init__(*given)  # type: ignore[arg-type]

    def _turn_soon(self) -> None:
        asyncio.get_running_loop().call_later(0.002, self._turn)

    def _turn(self) -> None:
        said = []
        for request_id, (asked, number) in list(self.running.items()):
            token = type(self).fault(self, asked, number)
            if isinstance(token, Failed):
                said.append(token)
                continue
            last = number + 1 == asked.params.max_tokens + bool(asked.partitions)
            for sequence in range(count := max(1, len(asked.partitions))):
                finish = "length" if last and sequence == count - 1 else None
                said.append(
                    Tokens(request_id, (token,), scores(asked.params.logprobs), finish=finish, sequence=sequence)
                )
            self.running[request_id] = asked, number + 1
        for one in said:
            if isinstance(one, Failed) or one.finish is not None:
                self.running.pop(one.request_id, None)
            self.say(one)
        if self.running:
            self._turn_soon()


def scores(wanted: int | None, count: int = 1) -> tuple[TokenLogprob, ...] | None:
    return None if wanted is None else (TokenLogprob(-0.5),) * count


class PlayedVault(fakes.FakeVault):
    """Reads at once; its first token is `first`."""

    first = 10

    def put(self, message: msgspec.Struct) -> None:
        match message:
            case AssignPrompt():
                self.asked.append(message)
                count = 2 if message.level == "obfuscated" else 1
                self.say(PromptAccepted(message.request_id, len(SUBJECT), count))
                if len(self.asked) == 1:
                    self.say(WantCores(24))
            case LeaseCores():
                asked, params = self.asked[0], self.asked.pop(0).params
                self.say(CoresDone())
                if asked.level == "isolated":
                    tokens = tuple(type(self).first + number for number in range(params.max_tokens))
                    self.say(Tokens(asked.request_id, tokens, scores(params.logprobs, len(tokens)), finish="length"))
                else:
                    score = None if params.logprobs is None else TokenLogprob(-0.5)
                    count = 2 if asked.level == "obfuscated" else 1
                    firsts = tuple(FirstToken(type(self).first, slot=slot, logprob=score) for slot in range(count))
                    self.say(Prefilled(asked.request_id, firsts, max_tokens=params.max_tokens - 1))
                if self.asked:
                    self.say(WantCores(24))
            case _:
                pass

    def __init__(self, *given: object) -> None:
        self.asked: list[AssignPrompt] = []
        super().__init__(*given)  # type: ignore[arg-type]


@pytest.fixture
async def node(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    monkeypatch.setattr(fakes, "FakeService", PlayedService)
    monkeypatch.setattr(fakes, "FakeVault", PlayedVault)
    node = await Node.build(spare_vaults=1, max_vaults=4)
    yield node
    node.close()


async def failed(node: Node) -> dict[str, str]:
    rehearsal = Rehearsal(node.relay, SERVING)
    async with asyncio.timeout(20):
        await rehearsal.play(LEVELS)
    return {level: reason.message for level, reason in rehearsal.failed.items()}


async def test_sound_levels_pass_and_nothing_stays(node: Node) -> None:
    node.service.stats = Stats(steps=40, reuse={}, blocks_total=64, blocks_free=64)
    assert await failed(node) == {}
    assert isinstance(node.service, PlayedService)
    asked = [(one.prompt, len(one.partitions)) for one in node.service.asked]
    assert asked.count((SUBJECT, 0)) == 2 and (OTHER, 0) in asked, "open: alone, in company, and a neighbour"
    assert sum(partitions == 2 for _, partitions in asked) == 2, "obfuscated: twice"
    assert sum(partitions == 1 for _, partitions in asked) == 3, "partitioned: twice, and a neighbour"
    assert node.service.forgotten == {"(rehearsal)", "(neighbour)"}
    assert len(node.relay.sessions) == 0 and len(node.relay.requests) == 0
    assert node.relay.availability.rehearser == 0 and not node.frontend.messages
    node.service.stats = Stats(steps=41)
    node.send(AskStats())
    told = await node.frontend.next(Stats)
    assert (told.steps, told.prompt_tokens, told.output_tokens) == (1, 0, 0), "what it computed counts for nobody"


@pytest.mark.parametrize(
    ("fault", "word"),
    [(fails_always, "failed"), (fails_in_company, "failed"), (sees_its_neighbours, "computed beside it")],
)
async def test_a_decoder_that_fails_or_sees_its_neighbours_is_found(
    node: Node, monkeypatch: pytest.MonkeyPatch, fault: Fault, word: str
) -> None:
    monkeypatch.setattr(PlayedService, "fault", staticmethod(fault))
    found = await failed(node)
    assert set(found) == {"open", "partitioned", "obfuscated"}, "what a vault decodes alone is sound"
    assert all(word in message for message in found.values())


async def test_a_level_that_answers_otherwise_than_open_is_found(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlayedVault, "first", 20)
    found = await failed(node)
    assert set(found) == {"partitioned", "isolated"} and "than at the level 'open'" in found["isolated"]


async def test_where_users_have_all_vaults_it_does_not_wait_for_them(node: Node) -> None:
    for number in range(3):
        node.ask(number + 1, f"s{number}", tenant=f"t{number}", keep=True)
    node.ask(4, "s", tenant="t3", keep=True)
    rehearsal = Rehearsal(node.relay, SERVING)
    await rehearsal.play(LEVELS)
    assert {level for level, reason in rehearsal.failed.items() if isinstance(reason, QueueFull)} == {
        "partitioned",
        "obfuscated",
        "isolated",
    }
    assert "open" not in rehearsal.failed


BREAK = """
import sys
if any("forkserver" in word for word in sys.orig_argv):
    from cloister.engine.runner import ModelRunner
    sound = ModelRunner.forward
    def forward(self, chunks):
        logits = sound(self, chunks)
        if {condition}:
            {then}
        return logits
    ModelRunner.forward = forward
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """Packed already: what packs weights need not be broken."""
    folder = save_model(tmp_path_factory.mktemp("tiny"))
    with forking():
        os.close(asyncio.run(sealed_once(folder, ENGINE)))
    return folder


async def start_broken(
    tiny: ModelFolder, folder: Path, monkeypatch: pytest.MonkeyPatch, condition: str, then: str
) -> RealNode:
    """A real node; the code that its service and vaults run is changed when Python starts there."""
    (folder / "sitecustomize.py").write_text(BREAK.format(condition=condition, then=then))
    paths = (str(folder), *os.environ.get("PYTHONPATH", "").split(":"))
    monkeypatch.setenv("PYTHONPATH", ":".join(path for path in paths if path))
    return await RealNode.start(tiny, afresh=True, spare_vaults=1)


@pytest.mark.slow
async def test_a_model_whose_rows_see_their_neighbours_is_not_served(
    tiny: ModelFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default level is among those that fail: the node does not start, and nothing of it stays."""
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(ModelUnsupported, match="default level, 'partitioned', fails"):
        await start_broken(tiny, tmp_path, monkeypatch, "len(chunks) > 1", "logits = logits.flip(-1)")
    assert not set(psutil.Process().children(recursive=True)) - before


@pytest.mark.slow
async def test_a_level_that_fails_is_not_offered_and_the_others_are(
    tiny: ModelFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Here `isolated`: a vault that decodes fails at its third token, which no vault computes at another level."""
    node = await start_broken(
        tiny, tmp_path, monkeypatch, "self.asker is None and chunks[0].start == 25", "raise RuntimeError"
    )
    try:
        assert "isolated" not in node.client.ready.levels and "partitioned" in node.client.ready.levels
        assert (await node.client.stats()).levels == node.client.ready.levels
        assert "level isolated is not offered" in caplog.text
    finally:
        await node.close()
