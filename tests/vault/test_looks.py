"""What a vault sees of attention is what the model pays, and looking changes no bit of an answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cloister.compute.layout import Chunk, Layout, Wanted
from cloister.engine.runner import ModelRunner, reserve_cache
from cloister.messages.prompts import ChatPrompt, PromptMessage
from cloister.models.decoder import Decoder
from cloister.prompts.reading import PromptReading
from cloister.vault import looks
from cloister.vault.looks import Heads, Looking, Watching, chosen
from cloister.vault.recitation import CHUNK, Recitation, SystemPrompt
from tests.models.architectures import CONFIGS, random_model
from tests.vault.node import ByteTokenizer

PROMPT, ANSWER, SPAN = list(range(3, 43)), list(range(60, 80)), (5, 21)


def layout_of(decoder: Decoder, public: int) -> Layout:
    turned = len(PROMPT) if decoder.relative else 0
    return Layout(len(PROMPT), public, len(PROMPT) - turned, turned)


@pytest.mark.parametrize("public", [0, 18])
def test_looks_are_the_models_own_attention(llama: Decoder, public: int) -> None:
    model = random_model(CONFIGS["llama"])
    model.set_attn_implementation("eager")
    with torch.no_grad():
        paid = model(torch.tensor([[*PROMPT, *ANSWER]]), output_attentions=True).attentions
    layout = layout_of(llama, public)
    blocks = list(range(layout.blocks(len(PROMPT) + len(ANSWER))))
    runner = ModelRunner(llama, reserve_cache(llama, 2))
    runner.forward([Chunk(PROMPT, 0, blocks[: layout.blocks(len(PROMPT))], layout)])
    every = [(layer, head) for layer, one in enumerate(paid) for head in range(one.shape[1])]
    other, own = layout.blocks(7), len(blocks)  # another sequence's rows come first
    before = Chunk(PROMPT[:7], 0, list(range(own, own + other)), Layout(7))
    for start in (0, 9):
        rows = ANSWER[start : start + 9]
        end = len(PROMPT) + start + len(rows)
        chunk = Chunk(rows, len(PROMPT) + start, blocks[: layout.blocks(end)], layout, Wanted.ALL)
        plain = runner.forward([before, chunk])
        looking = Looking(llama, runner.cache, chunk, SPAN, every, len(before.tokens))  # type: ignore[arg-type]
        with llama.kernels.watching(range(len(paid)), looking.take):
            watched = runner.forward([before, chunk])
        assert torch.equal(plain, watched)
        for layer, head in every:
            expected = paid[layer][0, head, end - len(rows) : end, slice(*SPAN)].sum(-1)
            torch.testing.assert_close(looking.found[layer, head], expected, rtol=1e-3, atol=1e-4)
        assert looking.mean() == pytest.approx(torch.stack(list(looking.found.values())).mean(0).tolist())


def test_the_span_is_where_the_system_message_is() -> None:
    reading = PromptReading(ByteTokenizer(), 300, 512)
    prompt = ChatPrompt((PromptMessage("system", "Say nothing."), PromptMessage("user", "Hello.")))
    assert reading.system_span(prompt, reading.read(prompt).tokens) == (0, 12)


def test_heads_are_those_that_see_a_recitation() -> None:
    calm = torch.full((3, 4), 0.1)
    recited = calm.clone()
    recited[1, 2], recited[2, 0] = 0.9, 0.5
    found = chosen(recited, calm)
    assert found is not None and found.places[:2] == ((1, 2), (2, 0)) and 0.1 < found.calm < 0.9
    assert chosen(calm + 0.01, calm) is None  # a model without such heads is not watched by them


def watched_answer(calm: float, paid: list[float]) -> Recitation:
    answer = Recitation(SystemPrompt("Not these letters at all, and none like them."), ByteTokenizer(), calm)
    answer.looks += paid
    answer.judge(list(range(65, 65 + 1 + len(paid))), ended=True)
    return answer


def test_much_attention_ends_an_answer_in_other_letters_and_without_a_threshold_does_not() -> None:
    paid = [0.05] * CHUNK + [0.6] * CHUNK
    assert watched_answer(0.3, paid).stopped and watched_answer(0.3, paid).judged == 1 + CHUNK
    assert not watched_answer(float("inf"), paid).stopped  # the control
    assert not watched_answer(0.3, [0.05] * 40).stopped
    assert not watched_answer(0.3, [0.6] * (CHUNK - 1)).stopped  # too little to tell


def test_a_pass_notes_the_attention_of_watched_answers_alone(llama: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "heads_of", lambda *_: Heads(((0, 1), (1, 0)), 0.5))
    runner = ModelRunner(llama, reserve_cache(llama, 2))
    reading: Any = SimpleNamespace(tokenizer=ByteTokenizer())
    watching = Watching(llama, reading, runner.cache)
    watching.begin([7], SystemPrompt("abc", SPAN))
    layout = layout_of(llama, 0)
    for request, first in ((6, 0), (7, 8)):
        blocks = list(range(first, first + layout.blocks(len(PROMPT) + 5)))
        runner.forward([Chunk(PROMPT, 0, blocks[: layout.blocks(len(PROMPT))], layout)])
        chunk = Chunk(ANSWER[:5], len(PROMPT), blocks, layout, Wanted.ALL)
        with watching.looking([(request, chunk)]):
            runner.forward([chunk])
    assert watching.answers.keys() == {7} and len(watching.answers[7].looks) == 5
    assert all(0 < each < 1 for each in watching.answers[7].looks)
