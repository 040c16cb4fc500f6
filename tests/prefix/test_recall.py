"""How much comes back from a lower tier at once: what is ready from its beginning on, and room for no more."""

from __future__ import annotations

import pytest

from cloister.engine.runner import BlockPool
from cloister.prefix.base import PrefixKey
from cloister.prefix.host import HostTier
from cloister.prefix.radix import RadixCache
from cloister.prefix.tier import State
from tests.prefix.keys import PAGE_TOKENS, key_of, pages
from tests.prefix.test_disk import BLOCK, Cells

MINE, OTHERS = key_of(pages(1, 2, 3, 4), "a"), key_of(pages(*range(10, 18)), "b")


class Scripted(HostTier):
    """Whose blocks are here, coming or lost by number, as a test says."""

    def __init__(self) -> None:
        super().__init__(100 * BLOCK, BLOCK)
        self.script: dict[int, State] = {}

    def fetch(self, number: int, bound: bytes) -> State:
        return self.script.get(number) or super().fetch(number, bound)

    def take(self, number: int) -> bytes | None:
        return None if number in self.script else super().take(number)


class World:
    """Four pages of one tenant in the tier, and a pool of eight that is full of another's."""

    def __init__(self) -> None:
        self.cells, self.tier = Cells(8), Scripted()
        self.pool = BlockPool(8, self.cells.wipe)
        self.cache = RadixCache(self.tier, storage=self.cells)
        self.cache.attach(self.pool, PAGE_TOKENS)
        self._keep(MINE, 4)
        self.cache.evict(4)
        [run] = self.cache.tree.nodes()
        self.numbers = [~place for place in run.blocks]
        self._keep(OTHERS, 8)
        assert self.pool.free == 0

    def _keep(self, key: PrefixKey, count: int) -> None:
        blocks = self.pool.allocate(count)
        assert blocks is not None
        self.cells.compute(key, blocks)
        self.cache.insert(key, blocks)
        self.pool.release(blocks)

    @property
    def evicted(self) -> int:
        """Pages of the other's that made way."""
        return self.cache.counts.evictions - 4


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("ready", [0, 1, 2, 4])
def test_room_is_made_for_what_is_ready_in_a_row_and_for_no_more(world: World, ready: int) -> None:
    world.tier.script = dict.fromkeys(world.numbers[ready : ready + 1], State.COMING)
    found = world.cache.lookup(MINE, 4)
    assert len(found.blocks) == ready == world.evicted == world.cache.counts.recalls
    assert world.cells.hold(MINE, found.blocks) and found.coming == (ready < 4)
    world.pool.release(found.blocks)
    world.tier.script = {}
    assert len(world.cache.lookup(MINE, 4).blocks) == 4 == world.evicted


def test_what_is_gone_when_it_is_taken_leaves_no_block_behind(world: World) -> None:
    """It was here when it was asked for; another page took its place meanwhile."""
    world.tier.script = {world.numbers[1]: State.HERE}
    found = world.cache.lookup(MINE, 4)
    assert len(found.blocks) == 1 == world.cache.counts.recalls
    world.pool.release(found.blocks)
    assert world.pool.free == 8 - world.cache.pages


@pytest.mark.parametrize("lost", [0, 2])
def test_what_follows_a_page_that_was_lost_is_lost_too(world: World, lost: int) -> None:
    world.tier.script = {world.numbers[lost]: State.LOST}
    found = world.cache.lookup(MINE, 4)
    assert len(found.blocks) == lost == world.evicted and not found.coming
    assert world.cells.hold(MINE, found.blocks)
    shelf = world.tier._slots
    assert not set(world.numbers[lost + 1 :]) & set(shelf), "nobody can find it: it takes no room"


def test_what_is_found_is_not_what_makes_room_for_the_rest(world: World) -> None:
    """Its first pages are in the pool, and all that is idle there; they stay."""
    world.pool.release(world.cache.lookup(MINE, 2).blocks)
    used = world.cache.lookup(OTHERS, 6)
    assert len(used.blocks) == 6 and world.evicted == 2 == world.cache.counts.recalls
    found = world.cache.lookup(MINE, 4)
    assert len(found.blocks) == 2 and found.coming
    assert world.evicted == 2 == world.cache.counts.recalls, "nothing went, and nothing had to come back"
    world.pool.release(used.blocks)
    assert len(world.cache.lookup(MINE, 4).blocks) == 4
