"""The laboratory of compact prompts: its adversary finds the one exact prompt among compact ones, and none where all
are treated alike."""

from __future__ import annotations

import pytest
import torch

from cloister_bench.obfuscation.compact import CompactLab, measure_case, measure_cost, odd_one_out
from cloister_bench.obfuscation.compact_results import Plan, Results, tables
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


def test_memory_is_counted_and_given_back(lab: CompactLab) -> None:
    rows = [measure_cost(lab, PROMPTS[:several], 1) for several in (2, 4)]
    assert all(row["alone_mib"] < row["compact_mib"] < row["exact_mib"] for row in rows)
    assert lab._pool.free == lab._pool.total
    results = Results(Plan(1, 1, 4, (1, 3)), "small", cost=rows, cases=[measure_case(lab, PROMPTS, 4)])
    assert len(tables(results.document())) == 2
