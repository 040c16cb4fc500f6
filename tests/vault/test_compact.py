"""Compact virtual prompts: a plain transformer with the same masks says the same, memory falls, nothing depends on which
prompt is real, and no exact answer ever meets an approximate key."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from cloister.compute.layout import BLOCK_TOKENS, Chunk, Layout, Wanted
from cloister.messages.controller_vault import Prefilled
from cloister.messages.prompts import ChatPrompt, ObfuscationParams, ObfuscationSecrets, PromptMessage, TextPrompt
from cloister.models.decoder import Decoder
from cloister.obfuscation.index import REQUEST, Prf
from cloister.vault.compact import Compact
from tests.models.architectures import CONFIGS, random_model
from tests.vault.node import FakeAnswerer, Room, engine_answer, small_decoder
from tests.vault.test_obfuscating import SECRET, prefilled

BEFORE, BETWEEN = "A letter with an ordinary beginning: I am ", " and I would like to know what one may do in "
AFTER = " on a Sunday in November, when it rains, and the shops are closed. Please answer in one sentence."
TEXT = f"{BEFORE}<redacted>Ann</redacted>{BETWEEN}<redacted>Ghent</redacted>{AFTER}"
REAL, GIVEN = ("Ann", "Ghent"), (("Robert", "Oslo"), ("Eve", "Liege"), ("Kim", "Rotterdam"))
COMPACT, EXACT = ObfuscationParams(fakes=3, compact=True), ObfuscationParams(fakes=3)
STEPS = 6


def hidden(text: str = TEXT, given: Any = GIVEN, secret: bytes = SECRET) -> TextPrompt:
    return TextPrompt(text, hidden=ObfuscationSecrets(secret, given))


def ask(room: Room, number: int, params: ObfuscationParams, prompt: Any = None, **more: Any) -> Prefilled:
    room.confide(number, prompt or hidden(), "obfuscated", params, **more)
    room.serve()
    return prefilled(room, number)


def in_use(room: Room) -> int:
    return room.pool.total - room.pool.free


def plain_answer(model: Any, values: tuple[str, str], widths: tuple[int, int], public: str = "") -> list[int]:
    """Greedy, by transformers' code: common tokens see common ones, without the last, a secret what precedes it, and what
    is left of the text everything before it. Positions leave room for the longest secret."""
    pieces = [public + BEFORE, values[0], BETWEEN, values[1], AFTER]
    tokens = [list(piece.encode()) for piece in pieces]
    room = [len(tokens[0]), widths[0], len(tokens[2]), widths[1], len(tokens[4])]
    starts = [sum(room[:at]) for at in range(5)]
    common = len(tokens[0]) + len(tokens[2]) + len(tokens[4]) - 1
    common -= (common - len(public)) % BLOCK_TOKENS
    left = len(tokens[0]) + len(tokens[2]) + len(tokens[4]) - common
    flat = [(token, starts[at] + place, at) for at in range(5) for place, token in enumerate(tokens[at])]
    kinds = ["own" if at in (1, 3) or index >= len(flat) - left else "common" for index, (_, _, at) in enumerate(flat)]
    ids, positions = [one[0] for one in flat], [one[1] for one in flat]
    answer: list[int] = []
    for _ in range(STEPS):
        size = len(ids)
        seen = torch.ones(size, size, dtype=torch.bool).tril()
        for row, column in product(range(len(flat)), repeat=2):
            if kinds[row] == "common" and kinds[column] == "own":
                seen[row, column] = False
        mask = torch.zeros(1, 1, size, size).masked_fill(~seen, torch.finfo(torch.float32).min)
        with torch.no_grad():
            logits = model(
                input_ids=torch.tensor([ids]), position_ids=torch.tensor([positions]), attention_mask=mask
            ).logits[0, -1]
        answer.append(int(logits.argmax()))
        ids.append(answer[-1])
        positions.append(starts[4] + len(tokens[4]) + len(answer) - 1)
    return answer


def vault_answers(room: Room, found: Prefilled) -> list[list[int]]:
    """As service and vault would compute them, with the exposed blocks."""
    public = len(found.public)
    pool = room.pool
    answers = []
    for first in found.sequences:
        exposed = room.answerer.exposed[first.slot]
        layout = Layout(prompt=exposed.end, public=public, rotation=exposed.rotation)
        head = list(
            room.vault._partitioned._exposed[1].sequences[0].blocks.all[: Layout(public, public).blocks(public)]
        )
        own = pool.allocate(1)
        assert own is not None
        said = [first.token]
        for step in range(STEPS - 1):
            blocks = [*head, *exposed.blocks, *own]
            logits = room.runner.forward([Chunk(said[-1:], layout.prompt + step, blocks, layout, Wanted.LAST)])
            said.append(int(logits[0].argmax()))
        pool.release(own)
        answers.append(said)
    return answers


@pytest.mark.parametrize("name", ["llama", "qwen2"])
@pytest.mark.parametrize("public", ["", "Be brief and kind."], ids=["private", "public"])
def test_answers_are_those_of_a_plain_transformer_with_the_same_masks(name: str, public: str) -> None:
    room = Room(small_decoder(name))
    prompt: Any = hidden()
    if public:
        turns = (PromptMessage("system", public, public=True), PromptMessage("user", TEXT))
        prompt = ChatPrompt(turns, ObfuscationSecrets(SECRET, GIVEN))
    found = ask(room, 1, COMPACT, prompt)
    model, columns = random_model(CONFIGS[name]), list(zip(REAL, *GIVEN, strict=True))
    widths = tuple(max(map(len, column)) for column in columns)
    order = Prf(SECRET).order(REQUEST, 4)
    expected = order.shuffled([plain_answer(model, values, widths, public) for values in (REAL, *GIVEN)])  # type: ignore[arg-type]
    assert vault_answers(room, found) == expected
    assert len({tuple(answer) for answer in expected}) > 1, "the secret matters"
    room.answerer.close()
