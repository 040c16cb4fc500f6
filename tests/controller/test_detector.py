"""The detector's keeper with a real process that plays its part, and once with the detector itself: every text is
answered once, and with PRIVATE whenever nobody read it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cloister.controller import detector as module
from cloister.controller.detector import DetectorKeeper
from cloister.detection.signed_rules import SignedRules, sign_rules
from cloister.messages.controller_detector import Category, Label, Labels
from cloister.process.watchdog import SILENT, Patience
from cloister.transparency.note import SigningKey

STUB = "tests.controller.stub_detector"
OWN = 'version = 1\n[[rule]]\nid = "own"\ncategory = "blacklist"\nwords = ["heron"]\n'


Block = tuple[int, int, int]
HELD_BACK: Block = (Label.PRIVATE, 0, Category.NONE)


class Answers:
    """A keeper, and what came back by request."""

    def __init__(
        self,
        name: str = STUB,
        *,
        rules: SignedRules | None = None,
    ) -> None:
        self.got: dict[int, tuple[Block, ...]] = {}
        self.new = asyncio.Event()
        self.keeper = DetectorKeeper(self.take, module=name, rules=rules, allow_degraded=True)
        self.keeper.start()

    def take(self, message: Labels) -> None:
        assert message.request_id not in self.got, "answered twice"
        self.got[message.request_id] = tuple(zip(message.labels, message.tiers, message.categories, strict=True))
        self.new.set()

    async def up(self) -> None:
        await asyncio.wait_for(self.keeper.up.wait(), 240)

    async def of(self, request_id: int) -> tuple[Block, ...]:
        async with asyncio.timeout(240):
            while request_id not in self.got:
                self.new.clear()
                await self.new.wait()
        return self.got[request_id]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloister.process.supervisor.BACK_OFF_S", (0.01,))


@pytest.fixture
async def answers() -> AsyncIterator[Answers]:
    made = Answers()
    yield made
    await made.keeper.close()


async def test_labels_come_back_and_texts_before_it_is_up_are_held_back(answers: Answers) -> None:
    answers.keeper.classify(1, "public", (3, 6))
    assert await answers.of(1) == (HELD_BACK, HELD_BACK)
    await answers.up()
    answers.keeper.classify(2, "public", (3, 6))
    assert [label for label, _, _ in await answers.of(2)] == [Label.PUBLIC, Label.PUBLIC]


@pytest.mark.parametrize("text", ["die", "lie", "short", "stranger"])
async def test_one_that_dies_or_lies_costs_hits_and_is_started_again(
    answers: Answers, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    await answers.up()
    answers.keeper.classify(1, text, (1, len(text)))
    assert await answers.of(1) == (HELD_BACK, HELD_BACK)
    await answers.up()
    answers.keeper.classify(3, "public", (6,))
    assert [label for label, _, _ in await answers.of(3)] == [Label.PUBLIC]
    assert answers.keeper.supervisor.restarts == 1 and "stay private" in caplog.text
    assert text not in caplog.text


async def test_it_knows_the_templates_openings_also_when_it_was_started_again(answers: Answers) -> None:
    await answers.up()
    answers.keeper.classify(1, "opening", (7,))
    assert (await answers.of(1))[0][0] == Label.PRIVATE
    answers.keeper.know(("opening",))
    answers.keeper.classify(2, "opening", (7,))
    assert (await answers.of(2))[0][0] == Label.PUBLIC
    answers.keeper.classify(3, "die", (3,))
    assert await answers.of(3) == (HELD_BACK,)
    await answers.up()
    answers.keeper.classify(4, "opening", (7,))
    assert (await answers.of(4))[0][0] == Label.PUBLIC


async def test_one_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SILENT, "detector", Patience(0.3, ask_every_s=0.1))
    answers = Answers()
    await answers.up()
    before = answers.keeper.pid
    answers.keeper.classify(1, "hang", (4,))
    assert await answers.of(1) == (HELD_BACK,)
    async with asyncio.timeout(240):
        while answers.keeper.pid == before or not answers.keeper.up.is_set():
            await asyncio.sleep(0.01)
    await answers.keeper.close()


async def test_too_much_at_once_is_held_back(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    await answers.up()
    monkeypatch.setattr(module, "MAX_PENDING", 1)
    answers.keeper.classify(1, "hang", (4,))
    answers.keeper.classify(2, "public", (6,))
    assert await answers.of(2) == (HELD_BACK,)
    await answers.keeper.close()
    assert answers.got[1] == (HELD_BACK,)


async def test_rules_that_change_are_handed_on_and_wrong_ones_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RULES_EVERY_S", 0.02)
    caplog.set_level("INFO")
    key = SigningKey.generate("rules.example")
    file = tmp_path / "rules"
    file.write_text(sign_rules(OWN, key))
    answers = Answers(rules=SignedRules(file, key.verifier))
    await answers.up()
    for text, said in ((OWN + "# heron\n", "has 1 rules"), (OWN.replace("heron", "stork"), "were not taken")):
        fresh = tmp_path / "fresh"
        fresh.write_text(sign_rules(text, key))
        os.replace(fresh, file)
        async with asyncio.timeout(240):
            while said not in caplog.text:
                await asyncio.sleep(0.01)
    file.write_text("nonsense")
    async with asyncio.timeout(240):
        while "stays in force" not in caplog.text:
            await asyncio.sleep(0.01)
    await answers.keeper.close()


async def test_the_detector_itself_is_sealed_and_labels() -> None:
    """The real process: it reads, answers in codes, and can be killed at any time."""
    answers = Answers(module.DETECTOR)
    await answers.up()
    clean = "Write a function that sorts a list of numbers. "
    text = clean + "My mail is sunny@example.org. Thank you very much."
    answers.keeper.classify(1, text, (len(clean), len(clean) + 29, len(text)))
    labels = await answers.of(1)
    assert [label for label, _, _ in labels] == [Label.PUBLIC, Label.PRIVATE, Label.PRIVATE]
    assert [category for _, _, category in labels][1:] == [Category.ACCOUNT, Category.INHERITED]
    assert answers.keeper.pid is not None
    os.kill(answers.keeper.pid, signal.SIGKILL)
    async with asyncio.timeout(240):
        while not answers.keeper.supervisor.restarts:
            await asyncio.sleep(0.01)
    await answers.up()
    await answers.keeper.close()
