"""The session's memory: what it lends is what was computed, and every block is accounted for."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from cloister.compute.layout import BLOCK_TOKENS, Layout
from cloister.prefix.base import BlockPool, Paging, PrefixKey
from cloister.vault.partitioned import SessionMemory
from tests.prefix.keys import pages_in

Content = tuple[tuple[int, ...], bool]
"""What a block's keys depend on: the tokens up to its end, and whether a segment ended before it."""


def memory(blocks: int) -> SessionMemory:
    made = SessionMemory()
    made.attach(BlockPool(blocks), BLOCK_TOKENS)
    return made


def key_of(tokens: tuple[int, ...], public: int) -> PrefixKey:
    paging = Paging(public, len(tokens), BLOCK_TOKENS)
    return PrefixKey(1, "vault", "", "partition", paging, paging.pack(tokens))


@dataclass(frozen=True)
class Recalled:
    blocks: list[int]
    computed: int


class Prefiller:
    """Fills blocks as a prefill would, and remembers what each of them holds."""

    def __init__(self, blocks: int) -> None:
        self.memory = memory(blocks)
        self.pool = self.memory.pool
        self.holds: dict[int, tuple[object, ...]] = {}

    def recall(self, tokens: tuple[int, ...], public: int) -> Recalled:
        key = key_of(tokens, public)
        blocks = self.memory.lookup(key, key.paging.pages(len(tokens) - 1)).blocks
        return Recalled(list(blocks), key.paging.positions(len(blocks)))

    def serve(self, tokens: tuple[int, ...], public: int) -> list[int] | None:
        """The prompt's blocks, lent ones checked and own ones filled; None where there is no room."""
        layout = Layout(prompt=len(tokens), public=public)
        lent = self.recall(tokens, public)
        need = layout.blocks(len(tokens)) - len(lent.blocks)
        own = self.pool.allocate(need) if self.memory.make_room(need) else None
        if own is None:
            self.pool.release(lent.blocks)
            return None
        assert lent.computed < len(tokens) and layout.blocks(lent.computed) == len(lent.blocks)
        blocks = lent.blocks + own
        wanted = contents(tokens, public)
        assert [self.holds[block] for block in lent.blocks] == wanted[: len(lent.blocks)]
        for block, content in zip(own, wanted[len(lent.blocks) :], strict=True):
            self.holds[block] = content
        key = key_of(tokens, public)
        self.memory.insert(key, blocks[: key.paging.pages(len(tokens))])
        return blocks


def contents(tokens: tuple[int, ...], public: int) -> list[tuple[object, ...]]:
    """For each block the tokens up to its end, and where the segment before it ended (0: there is none)."""
    ends = [(min(start + BLOCK_TOKENS, public), 0) for start in range(0, public, BLOCK_TOKENS)]
    ends += [(min(start + BLOCK_TOKENS, len(tokens)), public) for start in range(public, len(tokens), BLOCK_TOKENS)]
    return [(tokens[:end], split) for end, split in ends]


prompts = st.tuples(
    st.integers(1, 80), st.sampled_from([0, 0, 3, 16, 20, 40]), st.integers(0, 80), st.integers(0, 2)
).map(
    lambda drawn: (tuple(0 if place < drawn[2] else drawn[3] for place in range(drawn[0])), min(drawn[1], drawn[0] - 1))
)
steps = st.lists(st.one_of(prompts, st.integers(0, 5)), max_size=40)


@given(steps, st.integers(2, 30))
def test_every_block_is_accounted_for_and_lent_for_what_it_holds(steps, total):
    node = Prefiller(total)
    live: list[list[int]] = []
    for step in steps:
        if isinstance(step, int):
            if step < len(live):
                node.pool.release(live.pop(step))
        elif (blocks := node.serve(*step)) is not None:
            live.append(blocks)
        held = {block for blocks in live for block in blocks}
        assert all(node.pool.references(block) > 0 for block in held)
        assert len(held) <= total - node.pool.free
    for blocks in live:
        node.pool.release(blocks)
    assert node.memory.make_room(total) and node.pool.free == total and not pages_in(node.memory)


def test_the_next_turn_computes_only_what_is_new():
    node = Prefiller(20)
    turn = tuple(range(50))
    blocks = node.serve(turn, 0)
    node.pool.release(blocks)
    lent = node.recall((*turn, *range(100, 120)), 0)
    assert lent.computed == 48 and lent.blocks == blocks[:3]


def test_the_last_token_is_always_computed():
    node = Prefiller(20)
    node.serve(tuple(range(48)), 0)
    assert node.recall(tuple(range(48)), 0).computed == 32


def test_a_whole_public_span_is_lent_though_its_last_block_is_not_full():
    node = Prefiller(20)
    blocks = node.serve(tuple(range(60)), 20)
    lent = node.recall((*range(36), 99, 99), 20)
    assert (lent.computed, lent.blocks) == (36, blocks[:3])
    elsewhere = node.recall((*range(36), 99, 99), 24)
    assert (elsewhere.computed, elsewhere.blocks) == (16, blocks[:1])


def test_the_oldest_goes_first_and_what_was_used_again_is_young():
    node = Prefiller(6)
    for start in (0, 100, 200):
        node.pool.release(node.serve(tuple(range(start, start + 32)), 0))
    node.pool.release(node.recall(tuple(range(33)), 0).blocks)
    assert node.memory.make_room(2)
    found = [node.recall(tuple(range(start, start + 33)), 0) for start in (0, 100, 200)]
    assert [each.computed for each in found] == [32, 0, 32]


def test_a_longer_prompt_takes_the_place_of_the_one_it_begins_with():
    node = Prefiller(20)
    for length in (32, 64, 96):
        node.pool.release(node.serve(tuple(range(length)), 0))
    assert len(list(node.memory.tree.nodes())) == 1 and node.pool.free == 20 - 6


def test_blocks_that_a_prompt_holds_stay_when_room_is_made():
    node = Prefiller(4)
    blocks = node.serve(tuple(range(64)), 0)
    assert not node.memory.make_room(1)
    assert [node.pool.references(block) for block in blocks] == [2] * 4
    node.pool.release(blocks)
    assert node.memory.make_room(4) and not pages_in(node.memory)
