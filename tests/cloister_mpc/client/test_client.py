"""The client with parties played by the test: answers, drafts, refusals, cancelling, a party that is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cloister.channel.sealing import seal_prompt
from cloister.errors import PartyLost
from cloister.messages.controller_vault import AssignPrompt, PromptAccepted
from cloister.messages.generation import Cancel, Failed, Tokens
from cloister.messages.prompts import LockedPrompt, TextPrompt, TokenPrompt, write_prompt
from cloister.messages.types import SamplingParams
from cloister.prompts.reading import PromptReading
from cloister_mpc.client.client import MAX_WAITING, Client
from tests.cloister_mpc.client.fake_parties import VOCABULARY, FakeParties, looping
from tests.controller.fakes import Inbox
from tests.gateway.fakes import ByteTokenizer

CONTEXT = 64
GREEDY = {"temperature": 0.0, "max_tokens": 12}


class Asked(Inbox):
    """A client, and what it says."""

    def __init__(self, parties: FakeParties, draft_tokens: int = 0) -> None:
        super().__init__()
        self.parties = parties
        reading = PromptReading(ByteTokenizer(), VOCABULARY, CONTEXT)
        self.client = Client(parties, reading, self.put, max_context=CONTEXT, draft_tokens=draft_tokens)

    def ask(self, request_id: int = 1, prompt: Any = (1, 2, 3), level: Any = "mpc", **params: Any) -> None:
        given = prompt if isinstance(prompt, bytes | LockedPrompt) else write_prompt(TokenPrompt(tuple(prompt)))
        self.client.handle(AssignPrompt(request_id, level, given, SamplingParams(**{**GREEDY, **params})))

    async def answer(self, request_id: int = 1) -> tuple[tuple[int, ...], str]:
        tokens: list[int] = []
        while True:
            message = await self.next(Tokens, skip=(PromptAccepted,))
            assert message.request_id == request_id
            tokens += message.tokens
            if message.finish is not None:
                return tuple(tokens), message.finish

    async def idle(self) -> None:
        async with asyncio.timeout(5):
            while self.parties.open_now:
                await asyncio.sleep(0)


async def test_the_answer_is_what_the_model_says() -> None:
    asked = Asked(FakeParties())
    asked.ask(prompt=(5, 6, 7))
    assert await asked.next(PromptAccepted) == PromptAccepted(1, 3)
    assert await asked.answer() == (asked.parties.greedy((5, 6, 7), 12), "length")
    await asked.idle()
    assert asked.parties.opened == [(3, 16, "token")]  # lengths in buckets


async def test_it_tells_how_far_it_is_and_nothing_else() -> None:
    asked = Asked(FakeParties())
    asked.ask(max_tokens=2)
    message = await asked.next(Tokens, skip=(PromptAccepted,))
    assert message.progress is not None and message.tokens == ()
    assert (message.progress.token, message.progress.layer, message.progress.layers) == (1, 0, 4)
    await asked.answer()


async def test_a_stop_token_ends_it() -> None:
    asked = Asked(FakeParties(looping))
    asked.ask(prompt=(3,), stop_tokens=(8,))
    assert await asked.answer() == ((4, 5, 6, 7, 8), "stop")


@pytest.mark.parametrize("model", [None, looping])
@pytest.mark.parametrize("params", [{}, {"temperature": 0.7, "seed": 3}, {"mpc_reveal": "logits", "temperature": 0.7}])
async def test_drafts_change_no_token(model: Any, params: dict[str, Any]) -> None:
    answers = []
    for draft_tokens in (0, 3):
        parties = FakeParties(model) if model else FakeParties()
        asked = Asked(parties, draft_tokens)
        asked.ask(prompt=(*range(10), *range(10)), max_tokens=30, **params)
        answers.append(await asked.answer())
    assert answers[0] == answers[1]
    if model is looping and not params:
        assert set(parties.widths) == {4, 1} and len(parties.widths) < 12  # 29 tokens in few passes


async def test_a_draft_does_not_run_over_the_limit_or_a_stop_token() -> None:
    asked = Asked(FakeParties(looping), draft_tokens=3)
    asked.ask(1, prompt=tuple(range(10)) * 2, max_tokens=5)
    assert await asked.answer() == ((0, 1, 2, 3, 4), "length")
    asked.ask(2, prompt=tuple(range(10)) * 2, max_tokens=20, stop_tokens=(6,))
    assert await asked.answer(2) == ((0, 1, 2, 3, 4, 5, 6), "stop")


async def test_the_answer_ends_where_the_context_does() -> None:
    asked = Asked(FakeParties())
    asked.ask(prompt=(1,) * (CONTEXT - 2), max_tokens=50)
    tokens, finish = await asked.answer()
    assert (len(tokens), finish) == (2, "length")


async def test_logprobs_come_with_logits() -> None:
    asked = Asked(FakeParties())
    asked.ask(max_tokens=1, mpc_reveal="logits", logprobs=2)
    while not (message := await asked.next(Tokens, skip=(PromptAccepted,))).tokens:
        pass
    assert message.logprobs is not None and message.logprobs[0].top[0][0] == message.tokens[0]
    assert asked.parties.opened[0][2] == "logits"


@pytest.mark.parametrize(
    ("params", "code", "param"),
    [
        ({"top_p": 0.5}, "invalid_request", "top_p"),
        ({"logprobs": 1}, "invalid_request", "logprobs"),
        ({"repetition_penalty": 1.5}, "invalid_request", "repetition_penalty"),
        ({"logit_bias": {VOCABULARY: 1.0}}, "invalid_request", "logit_bias"),
        ({"max_tokens": 0}, "invalid_request", "max_tokens"),
        ({"prompt": (1,) * CONTEXT}, "context_length_exceeded", "prompt"),
        ({"prompt": (VOCABULARY,)}, "invalid_request", "prompt"),
        ({"prompt": b"\xc1"}, "protocol_error", None),
        ({"level": "isolated"}, "protection_unavailable", "protection"),
    ],
)
async def test_refusals(params: dict[str, Any], code: str, param: str | None) -> None:
    asked = Asked(FakeParties())
    asked.ask(**params)
    failure = await asked.next(Failed)
    assert (failure.code, failure.param) == (code, param)
    assert not asked.parties.opened


async def test_a_sealed_prompt_is_opened_with_its_key_which_is_then_gone() -> None:
    key, enc = bytearray(range(32)), bytes(32)
    sealed = seal_prompt(bytes(key), enc, 0, b'"hello"')
    asked = Asked(FakeParties())
    locked = LockedPrompt(sealed, key, enc, 0, "prompt")
    asked.ask(prompt=locked)
    tokens, _ = await asked.answer()
    assert tokens == asked.parties.greedy(tuple(b"hello"), 12) and not any(locked.key)


async def test_one_answer_at_a_time_in_order() -> None:
    asked = Asked(FakeParties())
    asked.ask(1, max_tokens=2)
    asked.ask(2, max_tokens=2)
    await asyncio.sleep(0)
    assert asked.parties.open_now <= 1
    await asked.answer(1)
    await asked.answer(2)


async def test_too_many_are_told_to_come_back() -> None:
    asked = Asked(FakeParties())
    asked.parties.may_go_on.clear()
    for number in range(MAX_WAITING + 2):
        asked.ask(number)
    assert (await asked.next(Failed, skip=(PromptAccepted,))).code == "queue_full"
    await asked.client.close()


async def test_cancelled_it_is_closed_at_the_parties_and_the_next_has_its_turn() -> None:
    asked = Asked(FakeParties())
    asked.parties.may_go_on.clear()
    asked.ask(1)
    asked.ask(2, max_tokens=1)
    await asked.next(Tokens, skip=(PromptAccepted,))
    asked.client.handle(Cancel(1))
    asked.parties.may_go_on.set()
    assert (await asked.answer(2))[1] == "length"
    await asked.idle()


async def test_a_cancelled_one_that_waited_never_reaches_the_parties() -> None:
    asked = Asked(FakeParties())
    asked.parties.may_go_on.clear()
    asked.ask(1, max_tokens=1)
    asked.ask(2)
    await asked.next(Tokens, skip=(PromptAccepted,))
    asked.client.handle(Cancel(2))
    asked.parties.may_go_on.set()
    await asked.answer(1)
    await asked.idle()
    assert len(asked.parties.opened) == 1


@pytest.mark.parametrize(
    ("error", "code"), [(PartyLost("Party 1 ended."), "party_lost"), (RuntimeError("a secret"), "party_lost")]
)
async def test_a_lost_party_ends_the_answer_with_a_typed_error(error: Exception, code: str) -> None:
    asked = Asked(FakeParties())
    asked.parties.fails = error
    asked.ask()
    failure = await asked.next(Failed, skip=(PromptAccepted, Tokens))
    assert failure.code == code and "a secret" not in failure.message
    await asked.idle()
    asked.parties.fails = None
    asked.ask(2, max_tokens=1)
    await asked.answer(2)


async def test_texts_are_read_by_the_models_own_tokenizer() -> None:
    asked = Asked(FakeParties())
    asked.ask(prompt=write_prompt(TextPrompt("héllo")))
    assert (await asked.next(PromptAccepted)).prompt_tokens == 6
    await asked.client.close()
