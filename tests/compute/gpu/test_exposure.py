"""What a vault writes for who answers for it: checked without a GPU, against what link.cuh reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import cloister.compute.gpu
from cloister.compute.base import CacheShape
from cloister.compute.gpu.mailbox import BEFORE, MOST_GROUPS, PAGE, WORD, ArenaShape
from cloister.compute.gpu.queries import ENTRY, GROUP_TOKENS, RECORDED

MODEL = CacheShape(layers=2, kv_heads=2, dim=64)
SHAPE = ArenaShape(blocks=5, model=MODEL, block_bytes=8192)
ROTATION = torch.arange(64, dtype=torch.float32), -torch.arange(64, dtype=torch.float32)


def test_length_rotation_and_table_lie_where_the_kernel_reads_them() -> None:
    source = (Path(cloister.compute.gpu.__path__[0]) / "answer.cuh").read_text()
    found = re.search(r"struct exposed \{(.*?)\};", source, re.DOTALL)
    assert found and [line.split(";")[0].strip() for line in found[1].strip().splitlines()] == [
        f"int length, recorded, unused[{BEFORE - 2}]",
        "float cosine[DIM], sine[DIM]",
        "int table[1]",
    ]
    words = SHAPE.written([4, 0, 2], 16, 50, ROTATION)
    assert words[:2].tolist() == [34, 1] and len(words) == SHAPE.words
    assert SHAPE.written([4, 0, 2], 16, 50, ROTATION, recorded=False)[:2].tolist() == [34, 0]
    assert torch.equal(words[BEFORE : BEFORE + 128].view(torch.float32), torch.cat(ROTATION))
    assert words[BEFORE + 128 :].tolist() == [4, 0, 2, 0, 0]


def test_a_model_that_rotates_nothing_has_no_rotation() -> None:
    words = SHAPE.written([0], 0, 1, (torch.empty(0), torch.empty(0)))
    assert not words[BEFORE : BEFORE + 128].any()


@pytest.mark.parametrize(
    ("blocks", "start", "end"),
    [([0], 0, 17), ([0], 3, 3), ([5], 0, 1), ([-1], 0, 1), (list(range(5)) * 2, 0, 1)],
)
def test_a_span_that_does_not_lie_in_its_blocks_is_refused(blocks: list[int], start: int, end: int) -> None:
    with pytest.raises(ValueError, match="does not lie"):
        SHAPE.written(blocks, start, end, ROTATION)


def test_caches_begin_on_a_page_behind_what_is_exposed_and_tickets_can_count_the_groups() -> None:
    several = ArenaShape(blocks=5, model=MODEL, block_bytes=8192, slots=32)
    for shape in (SHAPE, several):
        assert shape.keys_at >= 4 * shape.words * shape.slots and shape.keys_at % WORD == 0 == shape.header % PAGE
        assert shape.header >= shape.records_at + WORD * ENTRY * (RECORDED + 1) * shape.slots
        assert shape.records_at == shape.keys_at + WORD * shape.keys.words and shape.keys.groups == shape.groups == 1
        assert shape.size == shape.header + 5 * 8192 and shape.words == SHAPE.words
    assert ArenaShape(10**6, MODEL, 1).groups == MOST_GROUPS < 256
    assert ArenaShape(2 * GROUP_TOKENS // 16 + 1, MODEL, 1).groups == 3
