import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cloister.prefix.base import BlockPool


def test_allocate_is_all_or_nothing():
    pool = BlockPool(3)
    assert pool.allocate(4) is None and pool.free == 3
    taken = pool.allocate(3)
    assert taken is not None and sorted(taken) == [0, 1, 2] and pool.free == 0
    assert pool.allocate(1) is None and pool.allocate(0) == []


def test_a_block_is_free_when_its_last_holder_lets_go():
    pool = BlockPool(1)
    blocks = pool.allocate(1)
    pool.retain(blocks)
    pool.release(blocks)
    assert pool.free == 0 and pool.references(blocks[0]) == 1
    pool.release(blocks)
    assert pool.free == 1


def test_blocks_are_wiped_when_their_last_holder_lets_go_and_before_they_are_free():
    wiped: list[tuple[list[int], int]] = []
    pool = BlockPool(3, lambda blocks: wiped.append((blocks, pool.free)))
    blocks = pool.allocate(2)
    pool.retain(blocks[:1])
    pool.release(blocks)
    assert wiped == [(blocks[1:], 1)]
    pool.release(blocks[:1])
    assert wiped[1:] == [(blocks[:1], 2)] and pool.free == 3


def test_freeing_twice_raises_and_changes_nothing():
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(RuntimeError):
        pool.release(blocks)
    with pytest.raises(RuntimeError):
        pool.retain(blocks)
    assert pool.free == 2


class PoolMachine(RuleBasedStateMachine):
    """Against a model that is a plain list of holds."""

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(12)
        self.holds: list[int] = []

    @rule(count=st.integers(0, 14))
    def allocate(self, count):
        expected = 12 - len(set(self.holds))
        taken = self.pool.allocate(count)
        assert (taken is None) == (count > expected)
        for block in taken or []:
            assert block not in self.holds
            self.holds.append(block)

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def retain(self, data):
        block = data.draw(st.sampled_from(sorted(set(self.holds))))
        self.pool.retain([block])
        self.holds.append(block)

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def release(self, data):
        block = data.draw(st.sampled_from(sorted(set(self.holds))))
        self.pool.release([block])
        self.holds.remove(block)

    @invariant()
    def counts_are_exact(self):
        assert self.pool.free == 12 - len(set(self.holds))
        assert [self.pool.references(b) for b in range(12)] == [self.holds.count(b) for b in range(12)]


TestPool = PoolMachine.TestCase
