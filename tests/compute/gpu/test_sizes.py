"""What Python and CUDA must agree on, and what depends on shapes alone: checked without a GPU."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

import cloister
from cloister.compute.gpu.mailbox import GATE_BYTES, MOST_ASKED, WORD, MailboxShape
from cloister.compute.gpu.workspace import FEW, capacity, padded_rows
from cloister.compute.layer import Packed

FOLDER = Path(cloister.__file__).parent / "compute" / "gpu"
CUDA = ("cuda", "cuda.core", "cuda.bindings")


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module, imported as if cuda-core were installed."""
    mine = [f"cloister.compute.gpu.{name}" for name in ("program", "kernels")]
    for name in CUDA:
        monkeypatch.setitem(sys.modules, name, MagicMock())
    for name in mine:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module(mine[1])
    for name in mine:
        sys.modules.pop(name, None)


def defined(file: str) -> dict[str, str]:
    return dict(re.findall(r"^#define (\w+) (\(.*?\)|\S+)", (FOLDER / file).read_text(), re.MULTILINE))


def packed(columns: int, k: int, gate: Any = None) -> Packed:
    return Packed(torch.empty(0), columns, k, gate=gate)


def test_the_sizes_are_those_of_the_sources(kernels: ModuleType) -> None:
    linear, attention = defined("linear.cuh"), defined("attention.cuh")
    assert (int(linear["TILE"]), int(linear["STEP"])) == (kernels.TILE, kernels.STEP)
    assert (int(attention["QUERIES"]), int(attention["BEFORE_AND_AFTER"])) == (
        kernels.QUERIES,
        kernels.BEFORE_AND_AFTER,
    )
    assert 2 * int(attention["TASKS"]) * int(attention["PIECE"]) == kernels.GROUP_TOKENS
    made = re.findall(
        r"^FEW_ROWS\((\d+), (\d+), (\d+), (\d+), (\d+), \d+\)", (FOLDER / "linear.cuh").read_text(), re.MULTILINE
    )
    assert [int(rows) for rows, *_ in made] == list(FEW)
    for rows, eighths, bands, tiles, stages in (map(int, each) for each in made):
        assert 8 * eighths * bands == rows
        held = (kernels.BANDS_OF_FEW, kernels.TILES_OF_FEW, kernels.STAGES_OF_FEW)
        assert [each[rows] for each in held] == [bands, tiles, stages]


def test_k_is_cut_by_the_weights_shape_alone(kernels: ModuleType) -> None:
    """Every range has its four stages or more; a gated weight is not cut."""
    assert [kernels.splits_of(packed(*shape)) for shape in ((6144, 4096), (4096, 14336), (128256, 4096))] == [5, 8, 1]
    assert kernels.splits_of(packed(28672, 4096, "silu")) == 1
    assert kernels.splits_of(packed(576, 576)) == 2


def test_rows_are_padded_to_what_the_kernels_compute() -> None:
    assert [padded_rows(rows) for rows in (1, 8, 9, 33, 64, 65, 97, 128, 300)] == [8, 8, 16, 64, 64, 96, 128, 128, 384]
    assert [capacity(rows) for rows in (1, 64, 65, 300, 2048)] == [8, 64, 96, 512, 2048]


def test_boxes_hold_a_rows_words_and_lie_apart() -> None:
    shape = MailboxShape(users=3, layers=64, heads=9, dim=64)
    base = 1 << 30
    boxes = shape.boxes(base)
    questions_and_answers = (9 * 64 + 9 * (64 + 2)) * WORD
    assert shape.gates >= (64 + 1) * GATE_BYTES + MOST_ASKED * WORD
    assert boxes[0] - base >= shape.gates and shape.box >= questions_and_answers
    assert [b - a for a, b in pairwise(boxes)] == [shape.box] * 2
    assert boxes[-1] + shape.box <= base + shape.size
    assert all(box % 16 == 0 for box in boxes)  # two words are written at once


def test_the_list_of_who_is_asked_lies_where_the_kernels_look_and_a_thread_has_a_word_each() -> None:
    link, warps = (FOLDER / "link.cuh").read_text(), int(defined("attention.cuh")["WARPS"])
    assert defined("link.cuh")["MOST_ASKED"] == "(32 * WARPS)" and 32 * warps == MOST_ASKED
    assert f"(gates + (layers + 1) * {GATE_BYTES // 4})" in link and f"gates + layers * {GATE_BYTES // 4};" in link
    shape = MailboxShape(users=1, layers=7, heads=4, dim=64)
    assert shape.asked == (7 + 1) * GATE_BYTES
    begun = link.partition("KERNEL begin_step(")[2]
    assert begun.index("announced(") < begun.index("__threadfence();") < begun.index("post("), "announced, then written"


BEFORE_THE_WAIT = ("after_last();", "INLINE segment segment_of", "struct tasks {", "INLINE uint2 *box_of")
CHANGING = r"(?:a\.)?\b(?:position|span|tile_rows?|tables|segments|counts|boxes)\[|\*steps|\*\(const int4 \*\)"


def test_what_is_read_before_a_kernel_has_waited_is_read_past_the_first_level_cache() -> None:
    """A kernel that starts early finds there what an earlier step's kernels left: tables and positions of then."""
    looked_at = 0
    for source in FOLDER.glob("*.cuh"):
        for function in re.split(r"\n(?=KERNEL|INLINE|template|struct)", source.read_text()):
            if any(mark in function for mark in BEFORE_THE_WAIT):
                before = function.partition("{")[2].partition("after_last();")[0]
                assert not (found := re.search(CHANGING, before)), f"{source.name}: {found}"
                looked_at += 1
    assert looked_at > 15


def test_keys_and_values_are_read_past_the_first_level_cache() -> None:
    """Another process writes prompts' keys and values, so what a processor kept of them may be an earlier prompt's."""
    piece = (
        (FOLDER / "attention.cuh").read_text().partition("INLINE void piece(")[2].partition("INLINE void hand_over(")[0]
    )
    for what in ("block[j] + (4", "values + i"):
        assert f"__ldcg((const uint4 *)({what}" in piece


def test_a_stage_is_given_back_behind_a_fence_for_the_copy_that_comes_next() -> None:
    """Without it answers differ where many processes share a GPU; no check that computes alone would see that."""
    linear = (FOLDER / "linear.cuh").read_text()
    assert linear.count("barrier_arrive(r.freed(") == 1, "in one place alone"
    given_back = linear[linear.index("void give_back(") :]
    given_back = given_back[: given_back.index("\n}\n")]
    order = [given_back.index(part) for part in ("fence.proxy.async.shared::cta", "__syncwarp()", "barrier_arrive(")]
    assert order == sorted(order), "every lane's reads, then the warp, then who may copy"
    loops = linear.count("barrier_wait(r.filled(")
    assert loops == linear.count(" give_back(r, i, lane);") == 2, "every reader gives back"
