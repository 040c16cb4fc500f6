"""What the service asked is recorded by layer and index, and compared with what an honest pass asks: no tolerance."""

from __future__ import annotations

import mmap
import os
import select
from collections.abc import Iterator

import pytest

from cloister.compute.cpu.library import find_compiler
from cloister.compute.cpu.link import MOST_RECORDED, CpuAnswerer, CpuAsker
from cloister.compute.cpu.native import NativeKernels
from cloister.compute.host_cache import HostCache
from cloister.compute.layout import BLOCK_TOKENS, Chunk, Remote
from cloister.link.memory import LinkMemory
from cloister.models.decoder import Decoder
from tests.link.test_link import PATIENCE_MS, Answer, decoder_of, link_of, tokens_of
from tests.link.vault_stand_in import BLOCKS, hidden_of

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler on this machine")

PROMPT, TOKENS = tokens_of(1, 37), tokens_of(9, 12)


class Both:
    """A service and a vault in one process."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder, self.link = decoder, link_of(decoder)
        self.mine, self.theirs = (HostCache(decoder.cache_shape, BLOCKS, decoder.kernels.dtype) for _ in range(2))
        self.honest, self.asking = Answer(decoder, PROMPT, 0, None, 0), Answer(decoder, PROMPT, 0, Remote(7, 0), 0)
        hidden_of(decoder, self.mine, self.honest.prompt_run())
        assert isinstance(decoder.kernels, NativeKernels)
        ends = self.link.vault_descriptors
        self.answerer = CpuAnswerer(decoder.kernels.library, decoder, self.mine, self.link.shape, *ends)
        self.answerer.start()
        self.expose()
        self.asker = CpuAsker(self.link.shape, PATIENCE_MS)
        self.asker.attach(7, *self.link.service_descriptors)

    def expose(self) -> None:
        rotation = self.honest.layout.rotation
        self.answerer.expose(0, self.honest.blocks, start=0, end=len(PROMPT), rotation=rotation)

    def decode(self, tokens: list[int], index: int = 0) -> dict[int, str]:
        for at, token in enumerate(tokens, start=index):
            hidden_of(self.decoder, self.theirs, [self.asking.run([token], at)], self.asker)
        return self.asker.broken()

    def same(self, tokens: list[int], index: int = 0) -> bool:
        rows = [(0, index + at) for at in range(len(tokens))]
        with self.answerer.comparing(rows) as same:
            hidden_of(self.decoder, self.mine, [self.honest.run(tokens, index)])
        return same()


@pytest.fixture(params=[("llama", "fp32"), ("llama", "bf16"), ("gemma", "fp32")], ids="-".join)
def both(request: pytest.FixtureRequest) -> Iterator[Both]:
    both = Both(decoder_of(*request.param))
    yield both
    both.link.close()


def test_an_honest_service_asked_the_same(both: Both) -> None:
    assert both.decode(TOKENS) == {}
    assert both.same(TOKENS[:5]) and both.same(TOKENS[5:], 5)
    assert both.answerer.asked(0) == len(TOKENS)


@pytest.mark.parametrize("at", [0, 4, 11])
def test_one_other_query_is_seen(both: Both, at: int) -> None:
    asked = list(TOKENS)
    asked[at] = (asked[at] + 1) % both.decoder.vocabulary
    both.decode(asked)
    assert at == 0 or both.same(TOKENS[:at])
    assert not both.same(TOKENS[at:], at)


def test_a_query_that_was_never_asked_is_seen(both: Both) -> None:
    both.decode(TOKENS[:4])
    assert both.same(TOKENS[:4])
    assert not both.same(TOKENS[4:5], 4)


def test_more_queries_than_tokens_are_seen(both: Both) -> None:
    both.decode(TOKENS)
    assert both.same(TOKENS[:8]) and both.answerer.asked(0) == 12


def test_the_same_may_be_asked_again_after_a_preemption_and_nothing_else(both: Both) -> None:
    assert both.decode(TOKENS[:4]) == {}
    assert both.decode(TOKENS[:6]) == {}
    assert both.decode([(TOKENS[0] + 1) % both.decoder.vocabulary]) == {7: "link_malformed"}


def test_a_slot_begins_anew(both: Both) -> None:
    both.decode(TOKENS)
    both.answerer.withdraw(0)
    both.expose()
    assert both.answerer.asked(0) == 0
    assert not both.same(TOKENS[:1])
    assert both.decode(TOKENS[6:8]) == {}
    assert both.same(TOKENS[6:8])


def test_outside_the_block_nothing_is_compared(both: Both) -> None:
    with both.answerer.comparing([(0, 0)]) as same:
        pass
    hidden_of(both.decoder, both.mine, [Chunk([1], 0, [40])])
    assert same()


def unconnected(blocks: int) -> tuple[CpuAnswerer, LinkMemory]:
    decoder = decoder_of("llama", "fp32")
    assert isinstance(decoder.kernels, NativeKernels)
    cache, link = HostCache(decoder.cache_shape, blocks, decoder.kernels.dtype), link_of(decoder)
    return CpuAnswerer(decoder.kernels.library, decoder, cache, link.shape), link


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


def test_the_record_takes_memory_as_it_fills() -> None:
    """It has room for long answers in all slots, and every vault has one."""
    unconnected(1)
    before = resident_bytes()
    made, link = unconnected(MOST_RECORDED // BLOCK_TOKENS)
    room = made._record.numel() * made._record.itemsize
    assert room > 8 << 20 and resident_bytes() - before < room // 4
    link.close()


def test_copies_of_one_answerer_share_neither_key_nor_event() -> None:
    """It is made before the fork. A key that two vaults share, or one that the fork server knows, would let a service
    learn in one what is compared in the other; a shared event would be a channel between two tenants."""
    made, link = unconnected(BLOCKS)
    keys = {made._key, made._struct.key}
    assert keys == {0} and made._struct.question is None
    events = [os.dup(made.fileno())]
    for _ in range(2):
        made.connect(*link.vault_descriptors)
        keys.add(made._struct.key)
        events.append(os.dup(made.fileno()))
    assert len(keys) == 3
    os.eventfd_write(events[2], 1)
    readable, _, _ = select.select(events, [], [], 0)
    assert readable == [events[2]] and made._struct.event == made.fileno()
    for each in events:
        os.close(each)
    link.close()
