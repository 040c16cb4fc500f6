from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from cloister.errors import SetupError
from cloister_bench.mpc.quality_tasks import CONTINUATION_TOKENS, PROMPT_TOKENS, perplexity, tasks_of


def characters(text: str) -> list[int]:
    return [ord(character) % 256 for character in text]


def test_tasks_without_the_shared_folder_fill_their_prompts() -> None:
    (retrieval,) = tasks_of(None, characters, 3)
    assert len(retrieval.samples) == 3
    for sample in retrieval.samples:
        assert len(sample.prompt) == PROMPT_TOKENS
        assert 1 < len(sample.continuation) <= CONTINUATION_TOKENS
    assert len({sample.prompt for sample in retrieval.samples}) == 3


def test_what_is_to_be_retrieved_is_in_the_prompt_once_before() -> None:
    for sample in tasks_of(None, characters, 5)[0].samples:
        text = "".join(map(chr, sample.prompt))
        asked = text.rsplit("\n", 1)[1]
        assert text.count(f"\n{asked}{''.join(map(chr, sample.continuation))}\n") == 1


def test_tasks_of_the_shared_folder(shared: Path) -> None:
    tasks = tasks_of(shared, characters, 2)
    assert [task.name for task in tasks] == ["wikitext2", "novel", "retrieval"]
    assert all(len(sample.prompt) == PROMPT_TOKENS for task in tasks for sample in task.samples)


def test_a_folder_without_the_texts_is_said(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="longctx"):
        tasks_of(tmp_path, characters, 1)


def test_perplexity_of_a_fair_coin_is_two() -> None:
    logits = np.zeros((5, 2), np.float32)
    assert perplexity(logits, [0, 1, 1, 0, 1]) == pytest.approx(2)
    logits[:, 1] = math.log(3)
    assert perplexity(logits, [1] * 5) == pytest.approx(4 / 3)
