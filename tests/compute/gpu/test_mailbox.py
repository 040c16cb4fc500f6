"""Whom a step asks on a GPU, as numbers: checked without one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cloister.compute.base import AttentionShape, CacheShape
from cloister.compute.gpu.mailbox import (
    EXPOSED,
    MOST_ASKED,
    WORD,
    Aims,
    Boxes,
    MailboxShape,
    MailboxSlots,
    aimed,
    most_rows,
    partition_refusal,
)
from cloister.compute.gpu.queries import SLOT_BITS
from cloister.compute.layout import ASKS, Chunk, Layout, Remote, RemoteRows, Wanted, lay_out
from cloister.engine.graph_runner import ROWS, Bucket
from cloister.levels import MOST_FAKES
from cloister.placement import MPS_CLIENTS, Placement

SHAPE = MailboxShape(users=4, layers=2, heads=4, dim=64)
MAILBOXES = {7: 1 << 30, 9: 1 << 31}
BOXES: dict[int, Boxes] = {link: (address, range(4)) for link, address in MAILBOXES.items()}


def asking(*whom: tuple[int, int] | None) -> tuple[RemoteRows, ...]:
    layouts = [Layout(prompt=0, remote=None if each is None else Remote(*each)) for each in whom]
    return lay_out([Chunk([1], 0, [0], layout, Wanted.LAST) for layout in layouts], 1).remotes


def test_each_row_has_its_box_and_a_vaults_gate_is_opened_once() -> None:
    """A vault closes its gate when it begins to answer: opened again, it would answer the next step unasked."""
    asks, failed = aimed(SHAPE, BOXES, asking((7, 0), None, (9, 3), (7, 2)), 4)
    seven, nine = SHAPE.boxes(MAILBOXES[7]), SHAPE.boxes(MAILBOXES[9])
    assert asks[0].tolist() == [seven[0], 0, nine[3], seven[2]]
    assert asks[1].tolist() == [MAILBOXES[7], 0, MAILBOXES[9], 0]
    assert not failed


def test_a_vault_that_is_not_there_or_names_a_slot_that_is_not_there_fails_alone() -> None:
    asks, failed = aimed(SHAPE, BOXES, asking((8, 0), (7, 4), (9, 1)), 3)
    assert failed == {8: "vault_lost", 7: "link_malformed"}
    assert asks[0].tolist() == [0, 0, SHAPE.boxes(MAILBOXES[9])[1]] and asks[1].tolist() == [0, 0, MAILBOXES[9]]
    assert not asks[:, :2].any(), "nor is anybody told that they are asked"


def test_links_in_one_attention_process_have_their_own_boxes_and_open_one_gate() -> None:
    address = 1 << 30
    both = {7: (address, range(2, 3)), 9: (address, range(0, 1))}
    asks, failed = aimed(SHAPE, both, asking((7, 0), (9, 0)), 2)
    boxes = SHAPE.boxes(address)
    assert asks[:2].tolist() == [[boxes[2], boxes[0]], [address, 0]] and not failed
    assert asks[2].tolist() == [address + SHAPE.asked, address + SHAPE.asked + WORD] and asks[3].tolist() == [2, 0]
    assert aimed(SHAPE, both, asking((7, 1)), 1)[1] == {7: "link_malformed"}, "the next slot is another's"


def test_what_the_last_step_asked_is_remembered_until_a_link_is_attached_or_detached() -> None:
    boxes, looked = dict(BOXES), list[int]()

    def known() -> dict[int, Boxes]:
        looked.append(len(boxes))
        return boxes

    aims = Aims(SHAPE, known)

    def found(remotes: tuple[RemoteRows, ...], rows: int) -> tuple[torch.Tensor, dict[int, str]]:
        asks, failed = aims.of(remotes, rows)
        asks[3] %= 2**SLOT_BITS  # for which token: see test_queries.py
        return asks, failed

    first, both = asking((7, 0), (9, 1)), aimed(SHAPE, BOXES, asking((7, 0), (9, 1)), 2)[0]
    for _ in range(3):
        asks, failed = found(first, 2)
        assert torch.equal(asks, both) and not failed
        asks.zero_()  # what is given out is the caller's
    assert looked == [2], "once"
    for other, rows in ((asking((7, 0), (9, 2)), 2), (asking((9, 1), (7, 0)), 2), (first, 4)):
        asks, failed = found(other, rows)
        assert torch.equal(asks, aimed(SHAPE, BOXES, other, rows)[0]) and not failed
    aims.of(first, 2)
    del boxes[9]
    aims.forget(9)
    for _ in range(2):
        assert aims.of(first, 2)[1] == {9: "vault_lost"}, "said in every step"


def test_neighbouring_vaults_are_in_different_attention_processes_and_no_slot_is_two_vaults() -> None:
    slots_of = MailboxSlots(Placement.on_mps(8))
    vaults = slots_of.placement.vaults
    assert vaults + 8 + 1 == MPS_CLIENTS
    taken = [slots_of.at(slot) for slot in range(vaults)]
    assert [mailbox for mailbox, _ in taken[:9]] == [*range(8), 0]
    held = [(mailbox, slot) for mailbox, slots in taken for slot in slots]
    assert len(set(held)) == len(held) == vaults * EXPOSED
    assert max(slots[-1] for _, slots in taken) < slots_of.slots
    assert MailboxSlots(Placement.on_mps(1)).slots <= 2**SLOT_BITS, "a word of the list has room for any"
    for slot in (-1, vaults):
        with pytest.raises(ValueError, match="no such link slot"):
            slots_of.at(slot)


def test_a_vault_with_several_prompts_is_asked_for_all_of_them_in_one_step() -> None:
    """At `obfuscated` a request has λ+1 sequences: each has a box and a word in the list, and one gate is opened."""
    both, shape = MailboxSlots(Placement(2, 4)), MailboxShape(users=2 * EXPOSED, layers=2, heads=4, dim=64)
    assert EXPOSED > MOST_FAKES and both.slots == shape.users
    mailbox, slots = both.at(3)
    assert (mailbox, slots) == (1, range(EXPOSED, 2 * EXPOSED))
    address, rows = 1 << 30, MOST_FAKES + 1
    asks, failed = aimed(shape, {5: (address, slots)}, asking(*((5, slot) for slot in range(rows))), rows)
    assert not failed and asks[3].tolist() == list(slots[:rows])
    assert asks[0].tolist() == list(shape.boxes(address)[EXPOSED : EXPOSED + rows])
    assert asks[1].tolist() == [address] + [0] * (rows - 1)
    listed = asks[2].tolist()
    assert listed == [address + shape.asked + WORD * row for row in range(rows)] and listed[-1] < address + shape.gates


def test_a_steps_rows_fit_the_list_and_copies_of_the_first_are_not_in_it() -> None:
    assert ROWS[-1] <= MOST_ASKED
    assert SHAPE.asked >= 64 * (SHAPE.layers + 1) and SHAPE.asked + MOST_ASKED * WORD <= SHAPE.gates
    chunks = [Chunk([1], 0, [0], Layout(prompt=0, remote=Remote(7, slot)), Wanted.LAST) for slot in range(3)]
    batch = lay_out(chunks, 1)
    asks, _ = aimed(SHAPE, BOXES, batch.remotes, 3)
    bucket = Bucket(4, 32, lambda tensor: tensor, asks=True)
    bucket.fill(replace(batch, asks=asks))
    assert bucket.batch.asks is not None and bucket.batch.asks.shape == (ASKS, 4)
    assert torch.equal(bucket.batch.asks[:, :3], asks)
    assert bucket.batch.asks[:, 3].tolist() == [int(asks[0, 0]), 0, 0, 0]


def test_blocks_that_wait_for_answers_leave_room_for_those_that_give_them() -> None:
    """A waiting block holds 40 registers for each of 128 threads, an answering one 168, and a processor has 65,536."""
    assert [most_rows(kv_heads) for kv_heads in (3, 8, 16, 32)] == [128, 128, 64, 32]
    assert -(-1024 // 132) * 128 * 40 + 128 * 168 <= 65536


def test_two_rows_for_one_box_are_refused() -> None:
    _, failed = aimed(SHAPE, BOXES, asking((7, 1), (7, 1)), 2)
    assert failed == {7: "link_malformed"}


def test_models_that_the_kernels_cannot_partition_are_named() -> None:
    model = AttentionShape()
    model.cache_shape, model.queries_per_kv_head, model.windows = CacheShape(2, 2, 128), 4, [0, 0]
    assert not partition_refusal(model)
    model.windows = [0, 256]
    assert "limited way" in partition_refusal(model)
    model.windows, model.queries_per_kv_head = [0, 0], 5
    assert "queries" in partition_refusal(model)
    assert torch.equal(aimed(SHAPE, {}, (), 2)[0], torch.zeros(ASKS, 2, dtype=torch.int64))
