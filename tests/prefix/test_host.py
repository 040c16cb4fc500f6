from __future__ import annotations

from hashlib import sha256

import pytest
import torch

from cloister.compute.base import CacheShape
from cloister.compute.gpu.cache import GpuCache
from cloister.compute.host_cache import HostCache
from cloister.config import EngineSettings
from cloister.prefix.host import HostTier
from cloister.prefix.owners import Account, Owner
from cloister.prefix.tier import State
from cloister.service.process import tiers
from tests.compute.fake_device import FakeDevice

SIZE = 8
OWNER = Owner(1, Account("a"))


def store(tier: HostTier, text: bytes, owner: Owner = OWNER) -> int:
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


def test_who_holds_most_gives_first() -> None:
    tier = HostTier(3 * SIZE, SIZE)
    other = Owner(2, Account("b"))
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
