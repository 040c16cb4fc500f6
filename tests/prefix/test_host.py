from __future__ import annotations

from hashlib import sha256

import pytest
import torch

from cloister.compute.base import CacheShape
from cloister.compute.gpu.cache import GpuCache
from cloister.compute.host_cache import HostCache
from cloister.config import EngineSettings
from cloister.prefix.host import HostTier
from cloister.prefix.node import Namespace, Tenant
from cloister.prefix.tier import State
from cloister.service.prepare import tiers
from tests.compute.fake_device import FakeDevice

SIZE = 8
OWNER = Namespace(1, Tenant("a"))


def store(tier: HostTier, text: bytes, owner: Namespace = OWNER) -> int:
    assert tier.room(1) == 1
    number = tier.store(owner, sha256(text).digest(), text.ljust(SIZE))
    assert number is not None
    return number


def taken(tier: HostTier, number: int, text: bytes) -> bytes | None:
    return tier.take(number) if tier.fetch(number, sha256(text).digest()) is State.HERE else None


@pytest.mark.parametrize("end", ["take", "discard", "close"])
def test_a_block_is_overwritten_when_it_goes(end: str) -> None:
    tier = HostTier(2 * SIZE, SIZE)
    number = store(tier, b"secret")
    assert b"secret" in tier._memory[:]
    if end == "take":
        assert taken(tier, number, b"secret") == b"secret  "
    elif end == "discard":
        tier.discard(number)
    else:
        tier.close()
    assert tier._memory[:] == bytes(2 * SIZE)
    assert tier.fetch(number, sha256(b"secret").digest()) is State.LOST


def test_its_bytes_are_bounded_and_what_has_no_room_goes_down() -> None:
    below = HostTier(SIZE, SIZE)
    tier = HostTier(2 * SIZE, SIZE, below)
    numbers = [store(tier, text) for text in (b"1", b"2", b"3", b"4")]
    assert len(tier._memory) == 2 * SIZE and len(below._memory) == SIZE
    assert [taken(tier, number, text) for number, text in zip(numbers, (b"1", b"2", b"3", b"4"), strict=True)] == [
        None,
        b"2       ",
        b"3       ",
        b"4       ",
    ]


@pytest.mark.parametrize("kept", [True, False])
def test_what_makes_way_is_overwritten_too(kept: bool) -> None:
    below = HostTier(SIZE, SIZE) if kept else None
    tier = HostTier(SIZE, SIZE, below)
    number = store(tier, b"secret")
    assert tier.room(1) == 1
    assert tier._memory[:] == bytes(SIZE), "before anything else is there"
    assert taken(tier, number, b"secret") == (b"secret  " if kept else None)
    assert below is None or below._memory[:] == bytes(SIZE)


@pytest.mark.parametrize("end", ["take", "discard", "lost", "other tokens", "close"])
def test_what_went_down_is_known_as_long_as_it_is_there(end: str) -> None:
    below = HostTier(SIZE, SIZE)
    tier = HostTier(SIZE, SIZE, below)
    number, other = store(tier, b"secret"), store(tier, b"other")
    [lower] = below._slots
    if end == "take":
        assert taken(tier, number, b"secret") == b"secret  "
    elif end == "discard":
        tier.discard(number)
    elif end == "lost":
        below.discard(lower)
    elif end == "close":
        tier.close()
    bound = sha256(b"wrong" if end == "other tokens" else b"secret").digest()
    assert tier.fetch(number, bound) is State.LOST
    assert not tier._moved or end == "close"
    assert below._memory[:] == bytes(SIZE)
    assert tier.take(number) is None
    tier.discard(number)
    assert taken(tier, other, b"other") == (None if end == "close" else b"other   ")


def test_a_full_one_makes_room_as_it_stores_if_something_is_below() -> None:
    bound = sha256(b"1").digest()
    alone, tier = HostTier(SIZE, SIZE), HostTier(SIZE, SIZE, HostTier(SIZE, SIZE))
    assert [alone.store(OWNER, bound, bytes(SIZE)) for _ in range(2)] == [1, None]
    assert [tier.store(OWNER, bound, bytes(SIZE)) for _ in range(2)] == [1, 2]
    assert tier.fetch(1, bound) is tier.fetch(2, bound) is State.HERE
    assert alone.room(9) == 1 and tier.room(9) == 2, "below it too"


def test_who_holds_most_gives_first() -> None:
    tier = HostTier(3 * SIZE, SIZE)
    other = Namespace(2, Tenant("b"))
    small = store(tier, b"small", other)
    flood = [store(tier, b"flood") for _ in range(4)]
    assert taken(tier, small, b"small") and not taken(tier, flood[0], b"flood") and taken(tier, flood[-1], b"flood")


def test_other_tokens_are_not_answered() -> None:
    tier = HostTier(SIZE, SIZE)
    number = store(tier, b"one")
    assert tier.fetch(number, sha256(b"other").digest()) is State.LOST and tier.room(1) == 1


def test_where_the_pool_is_the_hosts_memory_there_is_no_such_tier() -> None:
    cache = FakeDevice().cache(CacheShape(1, 1, 4), 2)
    settings = EngineSettings(cache_host_bytes=1 << 20)
    assert tiers(cache, settings, None, b"model") is None
    cache.on_host = False  # as a GPU's is not
    made = tiers(cache, settings, None, b"model")
    assert isinstance(made, HostTier) and made.room(1 << 30) == (1 << 20) // cache.block_bytes
    assert tiers(cache, EngineSettings(), None, b"model") is None, "off by default"


def test_a_gpus_blocks_come_back_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its class on the host: that a GPU copies so, only a GPU shows."""
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *size, device, **other: zeros(*size, **other))
    shape = CacheShape(2, 2, 4)
    cache = GpuCache(shape, 3)
    cache._held.copy_(torch.randn(cache._held.shape))
    data, whole = cache.read(1), cache._held.clone()
    assert len(data) == cache.block_bytes
    cache._held[1] = 0
    cache.write(1, data)
    assert torch.equal(cache._held, whole)
    assert not cache.on_host and HostCache.on_host
