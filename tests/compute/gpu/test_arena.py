"""What a vault exposes in its arena, slot by slot: checked without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import ANY, MagicMock

import pytest
import torch

from cloister.compute.base import CacheShape
from cloister.compute.gpu.mailbox import BEFORE, EXPOSED, ArenaShape, MailboxShape, MailboxSlots
from cloister.compute.gpu.queries import ENTRY, RECORDED
from cloister.levels import MOST_FAKES
from cloister.placement import Placement
from tests.compute.without_cuda import imported

MODEL = CacheShape(layers=2, kv_heads=2, dim=64)
SHAPE = ArenaShape(blocks=6, model=MODEL, block_bytes=8192, slots=3)


@pytest.fixture
def arena(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setattr(torch.cuda, "current_stream", MagicMock())
    yield from imported("cloister.compute.gpu.arena", monkeypatch)


def answerer(arena: ModuleType, shape: ArenaShape = SHAPE) -> tuple[Any, torch.Tensor]:
    model = SimpleNamespace(rotation=lambda far: (torch.full((64,), float(far)), torch.zeros(64)))
    exposed = torch.zeros(shape.slots, shape.words, dtype=torch.int32)
    records = torch.zeros(shape.slots, RECORDED + 1, ENTRY, dtype=torch.int64)
    hashing = arena.Hashing.by(torch.zeros(shape.keys.words, dtype=torch.int64))
    cache = SimpleNamespace(arena=shape, exposed=exposed, records=records, hashing=hashing)
    return arena.ArenaAnswerer(model, cache), exposed


def test_each_prompt_of_a_request_has_words_of_its_own_over_blocks_in_common(arena: ModuleType) -> None:
    made, exposed = answerer(arena)
    made.start()
    assert not exposed.any(), "the rehearsal leaves nothing exposed"
    for slot, (blocks, end) in enumerate([([4, 0, 2], 40), ([4, 0, 5, 1], 50)]):
        assert made.free_slot() == slot
        made.expose(slot, blocks, start=0, end=end, rotation=end)
    assert exposed[:, 0].tolist() == [40, 50, 0]
    assert exposed[:, BEFORE + 128 :].tolist() == [[4, 0, 2, 0, 0, 0], [4, 0, 5, 1, 0, 0], [0] * 6]
    assert exposed[1, BEFORE : BEFORE + 64].view(torch.float32).tolist() == [50.0] * 64


def test_who_is_withdrawn_leaves_nothing_and_the_others_stay(arena: ModuleType) -> None:
    made, exposed = answerer(arena)
    for slot in range(3):
        made.expose(slot, [slot], start=0, end=16, rotation=0)
    assert made.free_slot() is None
    with pytest.raises(ValueError, match="taken"):
        made.expose(1, [0], start=0, end=1, rotation=0)
    before = exposed.clone()
    made.withdraw(1)
    assert not exposed[1].any() and torch.equal(exposed[[0, 2]], before[[0, 2]])
    assert made.free_slot() == 1
    with pytest.raises(ValueError, match="taken"):
        made.expose(3, [0], start=0, end=1, rotation=0)
    with pytest.raises(ValueError, match="does not lie"):
        made.expose(1, [6], start=0, end=1, rotation=0)
    assert made.free_slot() == 1, "one that was refused is free"


def test_a_vault_has_slots_for_all_sequences_of_a_request(arena: ModuleType) -> None:
    assert answerer(arena, ArenaShape(6, MODEL, 8192, arena.EXPOSED))[0].slots > MOST_FAKES


@pytest.mark.parametrize(("layers", "heads", "dim"), [(30, 9, 64), (32, 32, 128)])
def test_every_attention_process_maps_its_whole_mailbox_and_answers_for_its_own_places(
    arena: ModuleType, monkeypatch: pytest.MonkeyPatch, layers: int, heads: int, dim: int
) -> None:
    """37 vaults, eight processes: some have four places, in mailboxes made for five. A part of a handle maps nobody."""
    slots, cache = MailboxSlots(Placement.on_mps(8)), CacheShape(layers, heads // 3 or 1, dim)
    model: Any = SimpleNamespace(cache_shape=cache, heads=heads)
    made = MailboxShape.of(model, slots.slots).size
    memory, streams = MagicMock(), MagicMock()
    monkeypatch.setattr(arena, "SharedMemory", memory)
    monkeypatch.setattr(arena, "reserved", lambda size: 1 << 40)
    monkeypatch.setattr(arena, "AnswerStream", streams)
    monkeypatch.setattr(arena, "Blocks", MagicMock())
    for places in (5, 4):
        arena.GpuAttentionHost(MagicMock(), model, 128, places, 7, 200, slots)
        assert memory.adopt.call_args.args == (7, made)
        assert streams.call_args.args[3].users == places * EXPOSED and memory.create.call_count == places
        memory.create.reset_mock()
    arena.GpuAttentionHost(MagicMock(), model, 128, 4, 7, 200, slots)
    arena.Blocks.among.assert_called_with(ANY, 8)
