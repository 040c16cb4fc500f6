"""What Python and CUDA must agree on, and what depends on shapes alone: checked without a GPU."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

import cloister
from cloister.compute.gpu import products
from cloister.compute.gpu.find import architecture
from cloister.compute.gpu.mailbox import (
    GATE_BYTES,
    GATE_WORD,
    MOST_ASKED,
    STAYING_ROWS,
    WORD,
    MailboxShape,
    MailboxSlots,
    percentage_of,
)
from cloister.compute.gpu.products import FEW, capacity, padded_rows
from cloister.compute.layer import Packed
from cloister.compute.layout import Chunk, Layout, Remote, Wanted, lay_out
from cloister.placement import Placement
from tests.compute.without_cuda import imported

FOLDER = Path(cloister.__file__).parent / "compute" / "gpu"
SHARED, OF_A_BLOCK, REGISTERS = 228 * 1024, 1024, 65536
"""Of a Hopper processor, and what each block takes of shared memory beside its own."""


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    yield from imported("cloister.compute.gpu.kernels", monkeypatch)


def defined(file: str) -> dict[str, str]:
    return dict(re.findall(r"^#define (\w+) (\(.*?\)|\S+)", (FOLDER / file).read_text(), re.MULTILINE))


def few_rows() -> list[list[int]]:
    """Rows, tiles, stages of weights and of rows, blocks on a processor, and spare warps."""
    made = re.findall(r"^FEW_ROWS\((.*)\)$", (FOLDER / "linear.cuh").read_text(), re.MULTILINE)
    return [[int(number) for number in each.split(",")] for each in made]


def many_rows() -> dict[str, list[int]]:
    """Rows, stages, and sums of ranges in registers, by name."""
    made = re.findall(r"^MANY_ROWS\((\w+), (.*)\)$", (FOLDER / "linear.cuh").read_text(), re.MULTILINE)
    return {name: [int(number) for number in numbers.split(",")] for name, numbers in made}


def packed(columns: int, k: int, gate: Any = None) -> Packed:
    return Packed(torch.empty(0), columns, k, gate=gate)


def test_the_sizes_are_those_of_the_sources(kernels: ModuleType) -> None:
    stage, attention = defined("stage.cuh"), defined("attention.cuh")
    assert (int(stage["TILE"]), int(stage["STEP"])) == (products.TILE, products.STEP)
    assert many_rows() == {name: [each.rows, each.stages, each.held] for name, each in products.LINEAR_MANY.items()}
    assert (int(attention["QUERIES"]), int(attention["BEFORE_AND_AFTER"])) == (
        kernels.QUERIES,
        kernels.BEFORE_AND_AFTER,
    )
    assert 2 * int(attention["TASKS"]) * int(attention["PIECE"]) == kernels.GROUP_TOKENS
    assert [rows for rows, *_ in few_rows()] == list(FEW)
    for rows, tiles, stages, of_rows, blocks, _ in few_rows():
        assert [each[rows] for each in (products.TILES_OF_FEW, products.STAGES_OF_FEW)] == [tiles, (stages, of_rows)]
        assert blocks * (128 + 2 * 64 * (stages * tiles * 64 + of_rows * rows) + OF_A_BLOCK) <= SHARED
        assert of_rows <= stages, "a stage's barrier is armed by its weights, before its rows are fetched"


def test_one_that_answers_and_stays_finds_room_beside_the_products_of_few_rows() -> None:
    """Shared memory: all blocks of a product that a processor takes, and one of `answer`, at either width of heads."""
    beside = [each for each in few_rows() if each[0] <= STAYING_ROWS]
    assert [rows for rows, *_ in beside] == [8, 16, 32, 64]
    for rows, tiles, stages, of_rows, blocks, spare in beside:
        product = 128 + 2 * 64 * (stages * tiles * 64 + of_rows * rows) + OF_A_BLOCK
        for dim in (64, 128):
            queries = 512 // dim
            held = 8 * 16 * dim * 2 + 64 + queries * ((dim + 4) * 4 + 8 + 64 * 4) + 8 * (dim + 32) * 2 + 128 * 16 + 20
            assert blocks * product + held + OF_A_BLOCK + 256 <= SHARED, f"{rows} rows, heads of {dim}"
        warps = 4 * tiles + 1
        each = REGISTERS // (blocks * 32 * (warps + spare)) // 8 * 8
        assert blocks * 32 * warps * each + REGISTERS // 4 <= REGISTERS, "four of `answer` would fill a processor"


def test_a_block_of_many_rows_fits_a_processor_with_the_registers_that_one_group_leaves_to_two() -> None:
    linear = (FOLDER / "linear.cuh").read_text()
    left, taken = (int(re.search(rf"{name}_registers<(\d+)>", linear)[1]) for name in ("leave", "take"))  # type: ignore[index]
    assert 128 * left + 256 * taken <= REGISTERS and left % 8 == taken % 8 == 0
    for rows, stages, held in many_rows().values():
        assert rows // 2 + held <= taken - 16, "two sums of ranges, and addresses"
        ring, barriers = stages * (128 + rows) * 64 * 2, 128
        assert 2 * stages * 8 <= barriers and 8 * stages <= 64, "the second kind of barrier begins at byte 64"
        assert barriers + ring + bool(held) * (rows // 2 - held) * 4 * 256 <= SHARED - OF_A_BLOCK
    assert products.THREADS_OF_MANY == 3 * 128 and "__launch_bounds__(384, 1)" in linear


def test_those_that_stay_are_no_more_than_processors_and_all_have_some(kernels: ModuleType) -> None:
    from cloister.compute.gpu.answering import Blocks

    for processes in range(1, 47):
        theirs = 132 * percentage_of(processes) // 100
        blocks = Blocks.among(theirs, processes)
        assert blocks.staying >= 1 and processes * blocks.staying <= 132 and blocks.coming >= blocks.staying
        assert processes * theirs >= 132 * min(2, processes) * 9 // 10, "there is room for who has more to do"


def test_few_processes_may_use_all_processors_and_eight_a_fourth_each() -> None:
    """A context holds memory for every processor that it may use: eight of 250 MB, not of 740."""
    assert [percentage_of(processes) for processes in (0, 1, 2, 4, 8, 46)] == [100, 100, 100, 50, 25, 25]


FOLDER_OF_MPS = "CUDA_MPS_PIPE_DIRECTORY"
QUEUES, SHARE = "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


@pytest.mark.parametrize(
    ("role", "more"),
    [("service", {}), ("vault", {"CUDA_MPS_CLIENT_PRIORITY": "1"}), ("attention", {QUEUES: "4", SHARE: "25"})],
)
def test_each_role_is_a_client_of_mps_with_its_own_settings(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch, role: str, more: dict[str, str]
) -> None:
    """A vault's kernels start after others'. An attention process has two streams that wait: with a client's default of
    two queues, nothing else of it would ever run."""
    gpu, left = importlib.import_module("cloister.compute.gpu.device"), MagicMock()
    monkeypatch.setattr(kernels.torch, "zeros", MagicMock())
    monkeypatch.setattr(gpu, "leave_no_stack", left)
    monkeypatch.setattr(os, "environ", {})
    device = gpu.GpuDevice()
    device.share("/meet", 8)
    device.open(role)
    assert os.environ == {FOLDER_OF_MPS: "/meet", **more} and left.called == (role == "attention")


@pytest.mark.parametrize("role", ["service", "vault"])
def test_a_process_in_turns_does_not_look_for_mps(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    monkeypatch.setattr(kernels.torch, "zeros", MagicMock())
    monkeypatch.setattr(os, "environ", {FOLDER_OF_MPS: "/somebody-elses"})
    importlib.import_module("cloister.compute.gpu.device").GpuDevice().open(role)
    assert not os.environ


@pytest.mark.parametrize("shared", [True, False])
def test_a_vaults_cache_is_in_its_arena_where_links_are_on_the_device(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    gpu = importlib.import_module("cloister.compute.gpu.device")
    arena, own = MagicMock(), MagicMock()
    monkeypatch.setattr(gpu, "ArenaCache", arena)
    monkeypatch.setattr(gpu, "GpuCache", own)
    device, shape = gpu.GpuDevice(), SimpleNamespace(dim=64)
    device.kernels = MagicMock()
    if shared:
        device.share("/meet", 8)
    found = device.vault_cache(shape, 16, 5)
    assert found is (arena if shared else own).return_value
    assert not shared or arena.call_args.args == (shape, 16, 5)


def test_a_step_of_up_to_64_rows_lets_those_who_answer_stay(kernels: ModuleType) -> None:
    """Which way each answers is its own decision: so every product that gives queries knows the gates."""
    from cloister.compute.gpu.link import StepAsks

    state: Any = SimpleNamespace(steps="steps", started="started", late="late", patience_ns=5, layers=3)
    few, many = (StepAsks(state, torch.zeros(4, rows, dtype=torch.int64)) for rows in (STAYING_ROWS, STAYING_ROWS + 1))
    assert few.stays and not many.stays
    assert few.warning(1)[0] is not None and many.warning(1)[0] is None, "a layer's beginning is said to who is there"
    for asking, rows in ((few, STAYING_ROWS), (many, STAYING_ROWS + 1)):
        started, gates, steps, *numbers = asking.opening(1)
        assert (started, steps) == ("started", "steps") and gates is not None
        assert [int(number) for number in numbers] == [rows, 1, 3]
        made = MagicMock()
        asking.begin_step(made)
        assert int(made.call_args.args[-1]) == asking.stays, "room is promised where there is some"


def test_a_link_in_another_slot_is_asked_there_in_the_next_step(kernels: ModuleType) -> None:
    from cloister.compute.gpu.link import GpuAsker
    from cloister.compute.gpu.mailbox import Aims

    asker = object.__new__(GpuAsker)
    asker.shape, asker._slots = MailboxShape(users=4, layers=2, heads=4, dim=64), MailboxSlots(Placement(2, 4), each=2)
    asker._mailboxes = [MagicMock(address=1 << 30), MagicMock(address=1 << 31)]
    asker._attached, asker._asked, asker._failed = {}, {}, {}
    asker._aims = Aims(asker.shape, asker._boxes)
    asks = lay_out([Chunk([1], 0, [0], Layout(prompt=0, remote=Remote(7, 0)), Wanted.LAST)], 1).remotes

    def asked() -> tuple[int, dict[int, str]]:
        found, failed = asker._aims.of(asks, 1)
        return int(found[0, 0]), failed

    places = [asker.shape.boxes(1 << 30)[0], asker.shape.boxes(1 << 31)[2]]
    for place, box in ((0, places[0]), (3, places[1])):
        asker.attach_slot(7, place)
        assert asked() == (box, {}) == asked()
        asker.detach(7)
        assert asked() == (0, {7: "vault_lost"}), "nobody is asked in the place of who has left"


def test_a_process_has_room_for_all_its_notes(kernels: ModuleType) -> None:
    """Whatever lies behind them would be overwritten."""
    from cloister.compute.gpu.answering import CLOSING, NOTES

    answer = (FOLDER / "answer.cuh").read_text()
    [words] = re.findall(r"struct notes \{\s+unsigned (.*?);.*?\n    int4 asked\[MOST_ASKED\];\n\};", answer)
    names = words.split(", ")
    counts = [int(found[1]) if (found := re.search(r"\[(\d+)\]", name)) else 1 for name in names]
    assert sum(counts) + 4 * MOST_ASKED == NOTES
    assert sum(counts) % 4 == 0, "entries of sixteen bytes lie behind"
    assert names[CLOSING] == "closing"


def test_how_a_step_is_answered_is_decided_once_and_gates_open_for_those_who_come() -> None:
    """A process that stayed and came, too, would leave launches behind that wait for gates of another step."""
    common, link, linear, answer = (
        (FOLDER / f"{name}.cuh").read_text() for name in ("common", "link", "linear", "answer")
    )
    assert "way_of(unsigned *gates, int layers) { return gates + layers * 16 + 2; }" in common, "behind the gate"
    written = [line for source in (common, link, linear, answer) for line in source.splitlines() if "way_of(" in line]
    stored = [line for line in written if re.search(r"way_of\([^;]*\) = ", line)]
    assert len(stored) == 1 and "room ? UNDECIDED : COMES" in stored[0], (
        "undecided where there is room, at the beginning"
    )
    assert [line for line in written if "atomicCAS" in line] == [
        "    atomicCAS(way_of(gates, layers), way(step, UNDECIDED), way(step, how));"
    ], "who decides finds it undecided"
    begun = link.partition("KERNEL begin_step(")[2]
    order = [
        begun.index(part) for part in ("UNDECIDED : COMES", "announced(", "begun(", "step, COMES);", "let_next_start")
    ]
    assert order == sorted(order), "for who is late it is decided, and only then the step goes on"
    opened = linear.partition("when_all_have_started()")[2].partition("};")[0]
    assert "== way(__ldcg(number), COMES))\n                *(volatile unsigned *)gate_of(asked, layer) = 1;" in opened
    early = link.partition("merge_with_vaults(")[2].partition("EACH_FOUR(")[0]
    assert early.count("let_next_start()") == 1 and "if (__ldcg(steps + 1) == __ldcg(steps)) let_next_start();" in early
    assert "steps[1] = stays ? step : 0" in begun and "stays && *decided == way(step, STAYS)" in begun
    staying = answer.partition("    if (launch) {")[2].partition("    } else {")[0]
    last = staying.index("+ 1 == gridDim.x)\n            decide(gates, layers, step, STAYS);")
    assert last < staying.index("!stays_for("), (
        "the last block to arrive says so, and none goes on before it is decided"
    )
    assert staying.index("own->arrived = 0") < staying.index("own->launch = launch"), "counted anew for every launch"


def test_a_row_that_waits_looks_at_one_word_now_and_then() -> None:
    """All its words, all the time, took the bandwidth that answering needs."""
    merge = (FOLDER / "link.cuh").read_text().partition("merge_with_vaults(")[2].partition("KERNEL")[0]
    waits = merge.index("while (here && !take_two(from + DIM, m, l, number)) {")
    assert waits < merge.index("__nanosleep(") < merge.index("take_two(from + d,")
    assert merge.count("take_two(") == 3


def test_who_comes_for_a_layer_leaves_registers_for_who_gives_the_queries(kernels: ModuleType) -> None:
    """Blocks of `answer` on a processor, of four that fit, and one of `rotate_and_store` (40 registers a thread)."""
    from cloister.compute.gpu.answering import COMING

    assert "KERNEL __launch_bounds__(32 * WARPS, 4)\n    answer(" in (FOLDER / "answer.cuh").read_text()
    registers, rotates = 65536, 8 * 32 * 40
    assert COMING * registers // 4 + rotates <= registers


def test_the_product_that_gives_the_queries_opens_the_gates_and_no_other(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that did not would leave its vaults unasked until their rows are late."""
    made, program = kernels.GpuKernels(), MagicMock()
    made._program, made._asking = program, SimpleNamespace(stays=False, opening=lambda layer: ("opening", layer))
    made._product(torch.empty(0), packed(576, 576), 16, torch.empty(0), asks=2)
    assert program.launch.call_args.args[-2:] == ("opening", 2)
    apart = made._product(torch.empty(0), packed(576, 576), 16, torch.empty(0))
    assert program.launch.call_args.args[-6:-3] == (None, None, None)
    added = made._product(torch.empty(0), packed(576, 576), 256, torch.empty(0))
    assert (apart.splits, added.splits) == (2, 1), "whoever reads a product of few rows adds its ranges up"

    for name in ("_norm", "_rotate", "_attend", "workspace", "_on_gpu", "_product"):
        monkeypatch.setattr(made, name, MagicMock())
    monkeypatch.setattr(kernels, "on_gpu", MagicMock())
    layers = [MagicMock(index=index) for index in range(3)]
    made._run_layers(layers, torch.empty(4, 8), MagicMock())
    opening = [call.args[1] for call in made._product.call_args_list if call.kwargs.get("asks") is not None]
    assert opening == [layer.qkv for layer in layers]
    assert [call.kwargs["asks"] for call in made._product.call_args_list if "asks" in call.kwargs] == [0, 1, 2]


def test_who_runs_beside_those_that_stay_divides_a_processors_memory_as_they_do(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    wishes: list[tuple[str, int]] = []
    monkeypatch.setattr(kernels.program, "_set", lambda _kernel, what, value, _device: wishes.append((what, value)))
    made = object.__new__(kernels.program.Kernels)
    made._device, made._code, made._kernels, made._carveouts = 0, MagicMock(), {}, {}
    for beside in (False, True, True, False):
        made.launch("norm", (1,), 32, beside=beside)
    assert wishes == [("PREFERRED_SHARED_MEMORY_CARVEOUT", value) for value in (100, -1)], "said where it changes"


def test_vaults_always_run_beside_others_and_a_service_while_its_answerers_stay(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, program = importlib.import_module("cloister.compute.gpu.device"), MagicMock()
    device = gpu.GpuDevice()
    device.kernels._program = program

    def beside() -> bool:
        device.kernels.launch("norm", (1,), 32)
        return bool(program.launch.call_args.kwargs["beside"])

    assert not beside()
    for stays in (True, False):
        device.kernels._asking = SimpleNamespace(stays=stays)
        assert beside() is stays
    device.kernels._asking = None
    with pytest.raises(ValueError, match="arena"):
        device.answerer(MagicMock(), MagicMock(), -1, -1)
    monkeypatch.setattr(gpu, "ArenaAnswerer", MagicMock())
    device.answerer(MagicMock(), object.__new__(gpu.ArenaCache), -1, -1)
    assert beside()


def test_hoppers_own_operations_are_asked_for_on_hopper_alone() -> None:
    """Without the letter the slower ones are compiled; with it, a later GPU cannot run the code."""
    assert [architecture(*capability) for capability in ((9, 0), (10, 0), (12, 0))] == ["sm_90a", "sm_100", "sm_120"]
    assert (FOLDER / "stage.cuh").read_text().count("#ifdef __CUDA_ARCH_FEAT_SM90_ALL") == 6


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
    assert f"return gates + layer * {GATE_BYTES // 4} + {GATE_WORD // 4};" in (FOLDER / "common.cuh").read_text()
    assert "begun(unsigned *gates, int layers) { return gate_of(gates, layers); }" in link, "behind the layers' gates"
    begun = link.partition("KERNEL begin_step(")[2]
    order = [begun.index(part) for part in ("announced(", "__threadfence();", "post(", "begun(")]
    assert order == sorted(order), "announced, then written; then who stays may begin"
    assert begun.rindex("__threadfence();") > order[2]


BEFORE_THE_WAIT = (
    *("after_last();", "INLINE segment segment_of", "struct tasks {", "INLINE uint2 *box_of"),
    "struct opening {",
)
CHANGING = r"(?:a\.)?\b(?:position|span|tile_rows?|tables|segments|counts|boxes|gates)\[|\*steps|\*\(const int4 \*\)"


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
    attention = (FOLDER / "attention.cuh").read_text()
    words = attention.partition("struct eight_words {")[2].partition("};")[0]
    assert "ld.global.cg.v4" in words
    piece = attention.partition("INLINE void piece(")[2].partition("INLINE void hand_over(")[0]
    assert not re.search(r"\*\(const \w+ \*\)\(?(block|values|keys)", piece) and piece.count(".read(block[") == 6


def test_what_answers_copies_over_nothing_that_is_read_and_leaves_nothing() -> None:
    answer = (FOLDER / "answer.cuh").read_text()
    piece = answer.partition("INLINE void answer_piece(")[2].partition("\n}\n")[0]
    for fetched in ("fetch_keys", "fetch_values"):
        told = f"f.have_read();\n    __syncthreads();\n    if (fetches) f.{fetched}("
        assert told in piece, "who has read a place says so to the copies' proxy, all threads before one fetches"
    body = answer.partition("    answer(const bf16 *cache")[2]
    assert "f.wait_for_keys(warp), f.wait_for_values(warp);" in body, "nothing is copied into what was given up"
    last = body.rstrip().splitlines()[-2]
    assert "sizeof(s) / 4" in last and "volatile unsigned *)&s)[i] = 0" in last, "shared memory is wiped at the end"
    assert body.count("return;") == body[: body.index("s.asked[threadIdx.x]")].count("return;") + 1
    once_read = body[body.index("own->all = few") :]
    assert once_read.count("return;") == 3 and once_read.count("forget_list(s);") == 2, (
        "nor lengths by who has nothing to do"
    )
    assert "patience_ns)) return;" in once_read, "who never saw a list has none to forget"


def test_a_vaults_table_reaches_no_block_but_its_own() -> None:
    answer = (FOLDER / "answer.cuh").read_text()
    clamped = "min(max(__ldcg(at(slot)->table + min(position >> 4, blocks - 1)), 0), blocks - 1)"
    assert clamped in answer and answer.count("->table") == 1
    assert "length = min(max(length, 0), min(from.blocks * 16, most_groups * GROUP_TOKENS));" in answer


def test_a_stage_is_given_back_behind_a_fence_for_the_copy_that_comes_next() -> None:
    """Without it answers differ where many processes share a GPU; no check that computes alone would see that."""
    linear = (FOLDER / "linear.cuh").read_text()
    assert linear.count("barrier_arrive(r.freed(") == 1, "in one place alone"
    given_back = linear[linear.index("void give_back(") :]
    given_back = given_back[: given_back.index("\n}\n")]
    order = [given_back.index(part) for part in ("fence.proxy.async.shared::cta", "__syncwarp()", "barrier_arrive(")]
    assert order == sorted(order), "every lane's reads, then the warp, then who may copy"
    readers = linear.split("barrier_wait(r.filled(")[1:]
    assert len(readers) == 2
    for reader in readers:
        begun, read = reader.index("multiply_stage<"), reader.index("finish_stages<1>()")
        assert begun < read < reader.index("give_back(r, i - 1, lane)"), "the stage before, when tensor cores are done"
    assert readers[1].index("finish_stages<0>()") < readers[1].rindex("give_back(r, i - 1, lane)")


def test_under_mps_parts_are_placed_in_weights_that_are_there_once(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, shared = importlib.import_module("cloister.compute.gpu.device"), MagicMock()
    shared.copied.return_value.export.return_value = 5
    monkeypatch.setattr(gpu, "SharedWeights", shared)
    device = gpu.GpuDevice()
    file = torch.zeros(64)
    assert device.hold_weights(file) is None and not shared.mock_calls, "in turns each has its own"
    device.share("/meet", 8)
    assert device.hold_weights(file) == 5
    assert device.place(file[:8]) is shared.copied.return_value.find.return_value
    assert device.hold_weights(file, 9) is None
    shared.adopted.assert_called_once_with(file, 9)
    shared.adopted.return_value.find.return_value = None
    assert device.place(file[:8]).data_ptr() == file.data_ptr(), "what is not of the file is copied once it is open"
