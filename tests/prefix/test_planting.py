"""A planted guess tells nothing: who publishes a guess at another tenant's private prompt, and watches what becomes of
it, sees the same whether or not that prompt was sent. The classes of the service, with pages of sixteen tokens.

Each attack has a control: with a victim whose prompt is public as far as the guess goes, it works. So it would have
seen a private prompt, had that touched the planted pages.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import count

import pytest

from cloister.levels import PolicyName
from cloister.prefix.base import BlockPool, Paging, PrefixKey
from cloister.prefix.radix import RadixCache

PAGE = 16
GUESS = 4 * PAGE
Tokens = list[int]


class World:
    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.pool = BlockPool(120)
        self.cache = RadixCache()
        self.cache.attach(self.pool, PAGE)
        self._numbers = count(1)

    def text(self, tokens: int = GUESS) -> Tokens:
        return [self.chance.randrange(40_000) for _ in range(tokens)]

    def ask(
        self, tenant: str, tokens: Tokens, policy: PolicyName = "global", *, marked: int = 0, passed: int = 0
    ) -> int:
        """Serve a request whose first tokens are marked, or a detector passed; how many pages it found."""
        paging = Paging(marked, len(tokens), PAGE)
        key = PrefixKey(next(self._numbers), tenant, "", policy, paging, paging.pack(tokens))
        pages = paging.pages(len(tokens))
        self.cache.expect(key)
        self.cache.label(key.request_id, passed)
        found = self.cache.lookup(key, pages).blocks
        if self.pool.free < pages - len(found):
            self.cache.evict(pages - len(found) - self.pool.free)
        own = self.pool.allocate(pages - len(found))
        assert own is not None
        self.cache.insert(key, [*found, *own])
        self.pool.release([*found, *own])
        return len(found)


Plant = Callable[[World, Tokens], None]


def by_global(world: World, guess: Tokens) -> None:
    """As `open` where the policy shares everything."""
    world.ask("mallory", [*guess, 1])


def by_mark(world: World, guess: Tokens) -> None:
    """As `partitioned` with `"public": true`."""
    world.ask("mallory", [*guess, 1], "partition", marked=GUESS)


def evicted_later(world: World, plant: Plant, guess: Tokens, victim: Callable[[], object]) -> bool:
    """Whether a planted guess outlives others of its age, as it does if somebody used it."""
    controls = [world.text() for _ in range(10)]
    for one in (guess, *controls):
        plant(world, one)
    for _ in range(40):
        world.ask("mallory", world.text(PAGE))
    victim()
    for _ in range(40):
        world.ask("mallory", world.text(PAGE))
    for control in controls:
        for _ in range(4):
            plant(world, world.text())
        if world.ask("mallory", control, passed=GUESS) < 4:
            break
    return world.ask("mallory", guess, passed=GUESS) == 4


@pytest.mark.parametrize("plant", [by_global, by_mark])
@pytest.mark.parametrize(
    ("policy", "marked"),
    [("counted", 0), ("counted", GUESS), ("partition", 0), ("partition", GUESS)],
    ids=["shared", "shared, marked", "open", "partitioned"],
)
def test_what_becomes_of_a_planted_guess_does_not_tell_whether_it_was_sent(
    plant: Plant, policy: PolicyName, marked: int
) -> None:
    seen = set()
    for sent in (True, False):
        world = World(random.Random(1))
        guess, other, rest = world.text(), world.text(), world.text(40)
        prompt = [*(guess if sent else other), *rest]
        send = partial(world.ask, "alice", prompt, policy, marked=marked)
        seen.add(evicted_later(world, plant, guess, send))
    assert len(seen) == 1


def test_the_attack_sees_a_prompt_that_is_public() -> None:
    seen = []
    for sent in (True, False):
        world = World(random.Random(1))
        guess, other, rest = world.text(), world.text(), world.text(40)
        prompt = [*(guess if sent else other), *rest]
        seen.append(evicted_later(world, by_global, guess, partial(world.ask, "alice", prompt)))
    assert seen == [True, False]
