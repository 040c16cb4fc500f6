"""The laboratory of compact prompts: its adversary finds the one exact prompt among compact ones, and none where all
are treated alike."""

from __future__ import annotations

import pytest
import torch

from cloister_bench.obfuscation.compact import CompactLab, measure_case, odd_one_out
from tests.vault.node import small_decoder

SAID = "This patient takes {} every day, says the note, and there is nothing else to say about it today, nor tomorrow."
PROMPTS = [tuple(SAID.format(drug).encode()) for drug in ("aspirin", "codeine", "insulin", "morphine")]


@pytest.fixture(scope="module")
def lab() -> CompactLab:
    return CompactLab(small_decoder("llama"), 4)


def test_the_only_exact_prompt_is_found_and_none_where_all_are_compact(lab: CompactLab) -> None:
    row = measure_case(lab, PROMPTS, 4)
    assert row["paper_equal_vectors"] == 1.0
    assert row["ours_equal_vectors"] == 0.25


def test_who_shares_nothing_is_the_odd_one() -> None:
    view = torch.zeros(3, 2, 4)
    assert odd_one_out([view], 1) == pytest.approx(1 / 3)
    view[1] = 1
    assert odd_one_out([view], 1) == 1.0 and odd_one_out([view], 0) == 0.0


def test_memory_is_given_back(lab: CompactLab) -> None:
    blocks = []
    for prompts, compact in ((PROMPTS[:1], False), (PROMPTS, True), (PROMPTS, False)):
        with lab.prefilled(prompts, compact=compact) as held:
            blocks.append(held.blocks)
    assert blocks == sorted(set(blocks)), "compact prompts take more than one, and less than exact ones"
    assert lab._pool.free == lab._pool.total
