"""The client as a process, started by its keeper, with three real parties and a small model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import pytest_asyncio

pytest.importorskip("spu", reason="SPU is not installed: make mpc")

from cloister.config import MpcSettings
from cloister.messages.generation import Accepted, Failed, Tokens
from cloister.messages.prompts import TokenPrompt, write_prompt
from cloister.messages.types import SamplingParams
from cloister.models.source import ModelFolder
from cloister_mpc.client_keeper import MpcClientKeeper
from cloister_mpc.functions.bundle import LEAN
from cloister_mpc.local_parties import CONFIG_FILE
from cloister_mpc.model.decoder import PlainModel
from tests.cloister_mpc.local import PROMPT, SHAPE, connected, weights
from tests.cloister_mpc.model.plain_generation import teacher_forced
from tests.cloister_mpc.route_alone import MpcOnly
from tests.controller.fakes import Inbox

if TYPE_CHECKING:
    from tests.cloister_mpc.local import LocalParties

COUNT = 4
pytestmark = pytest.mark.asyncio(loop_scope="module")  # one client serves all tests


class Asked(Inbox):
    def __init__(self, folder: ModelFolder, file: Path) -> None:
        super().__init__()
        self.mpc = MpcOnly(self.put, SHAPE.vocabulary)
        settings = MpcSettings(parties=file, draft_tokens=2)
        self.keeper = MpcClientKeeper(
            folder, settings, self.mpc.route, vocabulary=SHAPE.vocabulary, max_context=SHAPE.context
        )
        self.mpc.route.client = self.keeper

    def ask(self, request_id: int, **params: Any) -> None:
        given = SamplingParams(**{"temperature": 0.0, "max_tokens": COUNT, **params})
        self.mpc.ask(request_id, write_prompt(TokenPrompt(PROMPT)), given)

    async def answer(self, request_id: int) -> list[int]:
        tokens: list[int] = []
        async with asyncio.timeout(600):
            while True:
                message = await self.later()
                assert not isinstance(message, Failed), message.message
                if isinstance(message, Tokens) and message.request_id == request_id:
                    tokens += message.tokens
                    if message.finish is not None:
                        return tokens

    async def later(self) -> Any:
        while not self.messages:
            await asyncio.sleep(0.05)
        return self.messages.pop(0)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def asked(local: LocalParties, smollm_folder: ModelFolder) -> AsyncIterator[Asked]:
    await connected(local, 120)
    await local.model.close()
    asked = Asked(smollm_folder, local.folder / CONFIG_FILE)
    asked.keeper.start()
    try:
        async with asyncio.timeout(300):
            while asked.keeper.client_pid is None:
                await asyncio.sleep(0.05)
        yield asked
    finally:
        await asked.keeper.close()


@cache
def greedy() -> list[int]:
    plain, tokens = PlainModel(SHAPE, weights(), LEAN), list(PROMPT)
    for _ in range(COUNT):
        tokens.append(int(teacher_forced(plain, tokens)[-1].argmax()))
    return tokens[len(PROMPT) :]


async def test_answers_on_shares_are_the_plain_models(asked: Asked) -> None:
    assert asked.keeper.client_pid is not None
    client = psutil.Process(asked.keeper.client_pid)
    asked.ask(1)
    assert isinstance(await asked.later(), Accepted)
    first = await asked.later()
    assert isinstance(first, Tokens) and first.progress is not None and not first.tokens
    wanted = greedy()
    assert await asked.answer(1) == wanted
    assert not client.children()  # it starts nothing

    asked.ask(2, mpc_reveal="logits", top_k=1, temperature=1.0)
    assert await asked.answer(2) == wanted
    asked.ask(3, temperature=1e-3, seed=5)  # noise dealt as shares, too little of it to change anything
    assert await asked.answer(3) == wanted


async def test_a_dead_client_leaves_the_parties_ready_for_the_next(asked: Asked) -> None:
    asked.messages.clear()
    asked.ask(4, max_tokens=64)
    while not isinstance(message := await asked.later(), Tokens):
        pass
    assert message.finish is None and asked.keeper.client_pid is not None
    dead = asked.keeper.client_pid
    psutil.Process(dead).kill()
    while not isinstance(message := await asked.later(), Failed):
        pass
    assert message.code == "vault_lost"
    async with asyncio.timeout(300):
        while asked.keeper.client_pid in (None, dead):
            await asyncio.sleep(0.05)
    asked.messages.clear()
    asked.ask(5)
    assert await asked.answer(5) == greedy()
