"""Tier 3 in the controller: what is uncertain becomes public by the model's word alone, and by nobody's silence."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from cloister.config import ControllerSettings, Settings
from cloister.controller.attested_settings import attested_settings
from cloister.controller.detector import BlockLabel
from cloister.controller.judge import (
    LEAST_AREA,
    LEAST_BLOCKS,
    MAX_CASES,
    MAX_DOUBTS,
    Case,
    JudgeKeeper,
    JudgeReport,
    case_of,
    digest_of_model,
    measured,
    place_of_report,
)
from cloister.controller.process import Controller
from cloister.controller.requests import wide
from cloister.controller.routes import open as open_route
from cloister.errors import ProtocolError, SetupError
from cloister.messages.controller_detector import Category, Label
from cloister.messages.controller_frontend import EndSession, Examine, JudgeForm, SubmitTokens
from cloister.messages.controller_service import ForgetTenant, Generate, GeneratePrompt
from cloister.messages.controller_service import PublicPrefix as PublicTokens
from cloister.messages.generation import Accepted, Cancel, Failed, Tokens
from cloister.messages.types import SamplingParams
from cloister.models.source import ModelFolder
from tests.controller.fakes import Node

FORM = JudgeForm((1,), (2,), (3,), private=7, public=8)
SIZE = 4
PROMPT = tuple(range(100, 140))
NAMES = {"+": (Label.PUBLIC, Category.NONE), "?": (Label.UNCERTAIN, Category.NAME)}
NAMES |= {"^": (Label.UNCERTAIN, Category.INHERITED), "-": (Label.PRIVATE, Category.NAME)}


def blocks(row: str) -> list[BlockLabel]:
    """A block for each sign: public, uncertain, uncertain by inheritance, private."""
    return [BlockLabel(NAMES[sign][0], 2, NAMES[sign][1]) for sign in row]


@pytest.mark.parametrize(
    ("row", "public", "doubts", "cleared"),
    [
        ("+?^?^-^", 4, [(4, 8), (12, 16)], 20),
        ("?", 0, [(0, 4)], 4),
        ("?" * 9 + "^", 0, [(4 * at, 4 * at + 4) for at in range(MAX_DOUBTS)], 4 * MAX_DOUBTS),
    ],
)
def test_what_is_asked_about(row: str, public: int, doubts: list[tuple[int, int]], cleared: int) -> None:
    case = case_of(9, "ann", PROMPT, blocks(row), SIZE)
    assert case is not None and (case.public, list(case.doubts), case.cleared) == (public, doubts, cleared)
    assert case.prompt == PROMPT[:cleared]


@pytest.mark.parametrize("row", ["", "+++", "-??", "++--"])
def test_nothing_is_asked_where_all_is_clear(row: str) -> None:
    assert case_of(9, "ann", PROMPT, blocks(row), SIZE) is None


class Bench:
    """A keeper with the service and the tree played by the test."""

    def __init__(self, case_s: float = 60.0) -> None:
        self.sent: list[msgspec.Struct] = []
        self.settled: list[tuple[int, int]] = []
        self.done = asyncio.Event()
        self.keeper = JudgeKeeper(self.sent.append, self._settle, case_s=case_s)
        self.keeper.learn(FORM)

    def _settle(self, request_id: int, public: int) -> None:
        self.settled.append((request_id, public))
        self.done.set()

    def ask(self, row: str, request_id: int = 9, tenant: str = "ann") -> bool:
        case = case_of(request_id, tenant, PROMPT, blocks(row), SIZE)
        assert case is not None
        return self.keeper.ask(case)

    @property
    def question(self) -> Generate:
        """The last message, which is a question."""
        assert isinstance(self.sent[-1], Generate)
        return self.sent[-1]

    def answer(self, token: int) -> None:
        asked = self.question.request_id
        self.keeper.handle(Accepted(asked))
        self.keeper.handle(Tokens(asked, (token,), finish="length"))


async def test_public_by_the_models_word_block_by_block() -> None:
    bench = Bench()
    assert bench.ask("+?^?-")
    assert bench.question.background and bench.question.policy == "none" and bench.question.tenant != "ann"
    assert bench.question.prompt == (1, *PROMPT[:4], 2, *PROMPT[4:8], 3)
    bench.answer(FORM.public)
    assert not bench.settled and bench.question.prompt == (1, *PROMPT[:12], 2, *PROMPT[12:16], 3)
    bench.answer(FORM.public)
    assert bench.settled == [(9, 16)] and bench.keeper.passed == 2


@pytest.mark.parametrize("said", [FORM.private, 55])
async def test_the_first_other_answer_ends_it(said: int) -> None:
    bench = Bench()
    bench.ask("+?^?-")
    bench.answer(FORM.public)
    bench.answer(said)
    assert bench.settled == [(9, 12)] and bench.keeper.refused == 1
    assert sum(isinstance(each, Generate) for each in bench.sent) == 2


async def test_a_failed_question_leaves_it_private() -> None:
    bench = Bench()
    bench.ask("+?")
    bench.keeper.handle(Failed(bench.question.request_id, "queue_full", "Full."))
    assert bench.settled == [(9, 4)]


async def test_a_service_that_is_silent_leaves_it_private() -> None:
    bench = Bench(case_s=0.01)
    bench.ask("+?")
    late = bench.question.request_id
    await asyncio.wait_for(bench.done.wait(), 5)
    assert bench.settled == [(9, 4)] and bench.sent[-1] == Cancel(late)
    bench.keeper.handle(Tokens(late, (FORM.public,), finish="length"))
    assert len(bench.settled) == 1, "an answer that comes too late changes nothing"


async def test_a_service_that_dies_leaves_all_private() -> None:
    bench = Bench()
    bench.ask("?+", 1)
    bench.ask("+?", 2)
    bench.keeper.service_gone()
    assert sorted(bench.settled) == [(1, 0), (2, 4)]
    bench.ask("?", 3)
    bench.answer(FORM.public)
    assert bench.settled[-1] == (3, 4), "and the next one is asked"


async def test_nothing_of_a_forgotten_tenant_is_kept() -> None:
    bench = Bench()
    bench.ask("?", 1, "ann")
    bench.ask("?", 2, "bob")
    asked = bench.question.request_id
    bench.keeper.forget("ann")
    assert bench.settled == [(1, 0)] and Cancel(asked) in bench.sent
    assert not any(case.tenant == "ann" for case in bench.keeper._cases)
    bench.answer(FORM.public)
    assert bench.settled[-1] == (2, 4)


async def test_few_wait_and_without_words_none() -> None:
    bench = Bench()
    assert all(bench.ask("?", number) for number in range(MAX_CASES)) and not bench.ask("?", 99)
    assert sum(isinstance(each, Generate) for each in bench.sent) == 1, "one at a time"
    bench.keeper.service_gone()
    unlearned = JudgeKeeper(bench.sent.append, lambda *_: None)
    assert not unlearned.ask(Case(1, "ann", PROMPT, 0, deque([(0, 4)]), 4))


ASKED = wide(1, 1)


def ask(node: Node) -> None:
    node.send(FORM)
    node.relay.labels.examine = lambda request_id, text, ends, *, suspicion: None
    params = SamplingParams(max_tokens=8)
    node.send(SubmitTokens(1, "ann", tuple(range(64)), params, level="shared", examined=True))
    node.send(Examine(1, "text", (4,)))


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    """A node with tier 3, whose gateway has said the words; one request at `shared` is under way."""
    node = await Node.build(spare_vaults=0, judge=True, shared_policy="safekv", detector=True)
    ask(node)
    yield node
    node.close()


async def test_a_labelled_request_is_put_to_the_service_and_its_users_hear_nothing_of_it(node: Node) -> None:
    node.relay.labels.labelled(ASKED, blocks("+?^-"))
    question = await node.service.next(Generate)
    asked = (await node.service.next(Generate)).request_id
    assert question.background and question.prompt == (1, *range(16), 2, *range(16, 32), 3)
    assert await node.service.next(PublicTokens) == PublicTokens(asked, 16, final=False), (
        "what is sure is not kept waiting"
    )
    node.service.say(Accepted(question.request_id), Tokens(question.request_id, (FORM.public,), finish="length"))
    assert await node.service.next(PublicTokens) == PublicTokens(asked, 48)
    assert not node.frontend.messages


async def test_with_the_service_gone_nothing_more_is_public(node: Node) -> None:
    node.relay.labels.labelled(ASKED, blocks("+?"))
    question = await node.service.next(Generate)
    await node.service.next(Generate)
    node.service.die()
    assert (await node.failure()).code == "service_unavailable"
    await node.start_service()
    node.service.say(Tokens(question.request_id, (FORM.public,), finish="length"))
    node.send(SubmitTokens(2, "ann", (1,), SamplingParams(max_tokens=8)))
    await node.service.next(Generate)  # what came before was heard by then: no Label


async def test_of_a_request_that_ended_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_route, "PATIENCE_S", 0.001)
    node = await Node.build(spare_vaults=0, judge=True, shared_policy="safekv", detector=True)
    ask(node)
    asked = (await node.service.next(Generate)).request_id
    assert await node.service.next(PublicTokens) == PublicTokens(asked, 0, final=False)
    node.service.say(Accepted(asked), Tokens(asked, (5,), finish="stop"))
    await node.frontend.next(Tokens, skip=(Accepted,))
    node.relay.labels.labelled(asked, blocks("+?"))
    assert await node.service.next(PublicTokens) == PublicTokens(asked, 16)
    node.close()


async def test_without_the_setting_uncertain_is_private() -> None:
    node = await Node.build(spare_vaults=0, shared_policy="safekv", detector=True)
    ask(node)
    node.relay.labels.labelled(ASKED, blocks("+?"))
    asked = (await node.service.next(Generate)).request_id
    assert await node.service.next(PublicTokens) == PublicTokens(asked, 16)
    node.close()


async def test_a_frontend_cannot_send_to_the_background(node: Node) -> None:
    with pytest.raises(ProtocolError):
        node.send(GeneratePrompt(3, "ann", (1,), SamplingParams(), background=True))


async def test_a_tenant_that_is_forgotten_has_its_questions_cancelled_first(node: Node) -> None:
    node.relay.labels.labelled(ASKED, blocks("?"))
    question = await node.service.next(Generate)
    await node.service.next(Generate)
    node.send(EndSession("ann", "any", private=True))
    assert await node.service.next(Cancel, skip=(PublicTokens,)) == Cancel(question.request_id)
    await node.service.next(ForgetTenant, skip=(PublicTokens,))


GOOD = JudgeReport("m", "", LEAST_AREA, 0.7, 0.9, LEAST_BLOCKS, LEAST_BLOCKS, 0.1, 0.5)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelFolder:
    monkeypatch.setenv("CLOISTER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    return ModelFolder("m", tmp_path / "model", {})


def gate(model: ModelFolder, report: JudgeReport | None, file: Path | None = None) -> tuple[bool, str]:
    """Whether tier 3 is on, and what is said if not. Without `file` the report lies where the bench puts it."""
    place = file or place_of_report(digest_of_model(model.path))
    place.parent.mkdir(parents=True, exist_ok=True)
    if report is not None:
        place.write_bytes(msgspec.json.encode(report))
    settings, said = measured(Settings(controller=ControllerSettings(judge=True, judge_report=file)), model)
    assert attested_settings(settings).judge == ("model" if settings.controller.judge else "none")
    assert settings.controller.judge != bool(said)
    return settings.controller.judge, "".join(said)


def test_a_model_that_was_measured_and_is_good_enough_judges(model: ModelFolder, tmp_path: Path) -> None:
    good = msgspec.structs.replace(GOOD, digest=digest_of_model(model.path))
    assert gate(model, good)[0] and gate(model, good, tmp_path / "report.json")[0]
    (model.path / "model.safetensors").write_bytes(b"other weights")
    assert not gate(model, None)[0] and not gate(model, None, tmp_path / "report.json")[0]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"area": LEAST_AREA - 0.01}, "0.79, and 0.80 is needed"),
        ({"private": LEAST_BLOCKS - 1}, "fewer than 100"),
        ({"clean": LEAST_BLOCKS - 1}, "fewer than 100"),
        ({"digest": "0" * 64}, "another model"),
    ],
)
def test_any_other_model_does_not_and_the_start_says_why(
    model: ModelFolder, changes: dict[str, object], why: str
) -> None:
    on, said = gate(model, msgspec.structs.replace(GOOD, **{"digest": digest_of_model(model.path), **changes}))
    assert not on and why in said and "cloister bench detection --judge" in said


def test_without_a_measurement_tier_3_is_off(model: ModelFolder, tmp_path: Path) -> None:
    on, said = gate(model, None)
    assert not on and "not measured" in said and "cloister bench detection --judge" in said
    for content in (None, "{}", "[", msgspec.json.encode(GOOD).decode().replace("0.8,", "1.8,")):
        if content is not None:
            (tmp_path / "report.json").write_text(content)
        with pytest.raises(SetupError):
            gate(model, None, tmp_path / "report.json")
    assert measured(Settings(), model) == (Settings(), ())


async def test_the_controller_goes_by_the_measurement(model: ModelFolder) -> None:
    settings = Settings(controller=ControllerSettings(judge=True, attester="software"))
    off = Controller(model, settings)
    assert "Tier 3" in off.notes[0] and off.attestation.settings.judge == "none" and off.relay.labels._judge is None
    gate(model, msgspec.structs.replace(GOOD, digest=digest_of_model(model.path)))
    on = Controller(model, settings)
    assert not on.notes and on.attestation.settings.judge == "model" and on.relay.labels._judge is not None
