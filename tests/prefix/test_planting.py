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

from cloister.engine.runner import BlockPool
from cloister.levels import PolicyName
from cloister.prefix.base import Paging, PrefixKey
from cloister.prefix.monitor import Monitor
from cloister.prefix.radix import RadixCache

PAGE = 16
GUESS = 4 * PAGE
Tokens = list[int]


class World:
    def __init__(self, chance: random.Random) -> None:
        self.now = 0.0
        self.chance = chance
        self.pool = BlockPool(120)
        self.cache = RadixCache(monitor=Monitor(clock=lambda: self.now))
        self.cache.attach(self.pool, PAGE)
        self._numbers = count(1)

    def text(self, tokens: int = GUESS) -> Tokens:
        return [self.chance.randrange(40_000) for _ in range(tokens)]

    def ask(
        self, tenant: str, tokens: Tokens, policy: PolicyName = "safekv", *, marked: int = 0, passed: int = 0
    ) -> int:
        """Serve a request whose first tokens are marked, or a detector passed; how many pages it found."""
        paging = Paging(marked, len(tokens), PAGE)
        key = PrefixKey(next(self._numbers), tenant, "", policy, paging, paging.pack(tokens))
        pages = paging.pages(len(tokens))
        self.cache.prefetch(key, pages)
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


def by_detection(world: World, guess: Tokens) -> None:
    """With other words after it, so that a detector passes it."""
    world.ask("mallory", [*guess, 1], passed=GUESS)


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


def made_popular(world: World, plant: Plant, guess: Tokens, victim: Callable[[], object]) -> bool:
    """Whether a fourth stranger hit it in its first minute: then the monitor never takes it back."""
    plant(world, guess)
    for who in ("mallory2", "mallory3", "mallory4"):
        world.ask(who, [*guess, 1], passed=GUESS)
    victim()
    for _ in range(59):
        world.now += 0.5
        world.ask("mallory2", [*guess, 1], passed=GUESS)
    return world.cache.counts.demotions == 0


@pytest.mark.parametrize("attack", [evicted_later, made_popular])
@pytest.mark.parametrize("plant", [by_detection, by_mark])
@pytest.mark.parametrize(
    ("policy", "marked"),
    [("safekv", 0), ("safekv", GUESS), ("partition", 0), ("partition", GUESS)],
    ids=["shared", "shared, marked", "open", "partitioned"],
)
def test_what_becomes_of_a_planted_guess_does_not_tell_whether_it_was_sent(
    attack: Callable[[World, Plant, Tokens, Callable[[], object]], bool], plant: Plant, policy: PolicyName, marked: int
) -> None:
    seen = set()
    for sent in (True, False):
        world = World(random.Random(1))
        guess, other, rest = world.text(), world.text(), world.text(40)
        prompt = [*(guess if sent else other), *rest]
        send = partial(world.ask, "alice", prompt, policy, marked=marked)
        seen.add(attack(world, plant, guess, send))
    assert len(seen) == 1


@pytest.mark.parametrize("attack", [evicted_later, made_popular])
def test_the_attacks_see_a_prompt_that_is_public(
    attack: Callable[[World, Plant, Tokens, Callable[[], object]], bool],
) -> None:
    seen = []
    for sent in (True, False):
        world = World(random.Random(1))
        guess, other, rest = world.text(), world.text(), world.text(40)
        prompt = [*(guess if sent else other), *rest]
        seen.append(attack(world, by_detection, guess, partial(world.ask, "alice", prompt, passed=GUESS)))
    assert seen == [True, False]
