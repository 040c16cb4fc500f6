"""What the prefix cache's tree costs: bytes for each block, and time to look up, insert and evict a prompt.

    python -m cloister_bench.sharing.tree_cost [NODES]

Runs of one, two, four and 32 pages, each a tenant's own; conversations of 32 turns, a page each; then a prompt of 512
tokens whose first page is known, to its own tenant or to another.
"""

from __future__ import annotations

import gc
import random
import struct
import sys
import tracemalloc
from collections.abc import Callable
from statistics import median
from time import process_time

from cloister.engine.blocks import BlockPool
from cloister.prefix.base import Paging, PrefixKey
from cloister.prefix.radix import RadixCache

PAGE_TOKENS = 16
TENANTS = 64


def key_of(number: int, tokens: list[int]) -> PrefixKey:
    paging = Paging(0, len(tokens), PAGE_TOKENS)
    return PrefixKey(number, f"tenant-{number % TENANTS}", "", "partition", paging, paging.pack(tokens))


def filled(nodes: int, pages: int, draw: random.Random) -> tuple[RadixCache, BlockPool, list[PrefixKey]]:
    """A tree of `nodes` runs, and keys of some of them."""
    pool, cache = BlockPool(nodes * pages + 4096), RadixCache()
    cache.attach(pool, PAGE_TOKENS)
    kept = []
    for number in range(nodes):
        key = key_of(number, [draw.randrange(50_000) for _ in range(pages * PAGE_TOKENS)])
        keep(cache, pool, key)
        if number % max(1, nodes // 100) == 0:
            kept.append(key)
    return cache, pool, kept


def keep(cache: RadixCache, pool: BlockPool, key: PrefixKey) -> None:
    length = len(key.tokens) // (PAGE_TOKENS * 4)
    found = cache.lookup(key, length - 1).blocks
    blocks = [*found, *(pool.allocate(length - len(found)) or [])]
    cache.insert(key, blocks)
    pool.release(blocks)


def conversed(conversations: int, turns: int, draw: random.Random) -> RadixCache:
    """A tree of conversations, each of which grows by a page with every turn."""
    pool, cache = BlockPool(conversations * turns + 4096), RadixCache()
    cache.attach(pool, PAGE_TOKENS)
    said: list[list[int]] = [[] for _ in range(conversations)]
    for _ in range(turns):
        for number, tokens in enumerate(said):
            tokens += [draw.randrange(50_000) for _ in range(PAGE_TOKENS)]
            keep(cache, pool, key_of(number, tokens))
    return cache


def bytes_per_block(fill: Callable[[], RadixCache]) -> float:
    filled(10, 1, random.Random(0))
    gc.collect()
    tracemalloc.start()
    cache = fill()
    gc.collect()
    traced = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, "*/engine/blocks.py")])
    tracemalloc.stop()
    return sum(trace.size for trace in traced.traces) / cache.pages


def microseconds(nodes: int) -> dict[str, float]:
    """Medians in processor time: packing 512 tokens, looking them up, inserting them, evicting 31 pages."""
    draw = random.Random(2)
    cache, pool, kept = filled(nodes, 1, draw)
    times: dict[str, list[float]] = {"packing": [], "lookup": [], "insert": [], "evict": []}
    for number in range(300):
        known = struct.unpack(f"<{PAGE_TOKENS}i", draw.choice(kept).tokens)
        tokens = [*known, *(draw.randrange(50_000) for _ in range(31 * PAGE_TOKENS))]
        at = [process_time()]
        key = key_of(number, tokens)
        at.append(process_time())
        found = cache.lookup(key, 31).blocks
        at.append(process_time())
        blocks = [*found, *(pool.allocate(32 - len(found)) or [])]
        cache.insert(key, blocks)
        at.append(process_time())
        pool.release(blocks)
        begun = process_time()
        cache.evict(31)
        at.append(process_time() - begun + at[-1])
        for name, start, end in zip(times, at, at[1:], strict=False):
            times[name].append(end - start)
    return {name: 1e6 * median(values) for name, values in times.items()}


def main() -> None:
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    for pages in (1, 2, 4, 32):
        size = bytes_per_block(lambda: filled(max(200, nodes // pages), pages, random.Random(1))[0])  # noqa: B023
        print(f"{pages} pages a run: {size:.0f} bytes for each block")
    size = bytes_per_block(lambda: conversed(max(20, nodes // 32), 32, random.Random(1)))
    print(f"conversations of 32 turns, a page each: {size:.0f} bytes for each block")
    times = ", ".join(f"{name} {value:.1f} µs" for name, value in microseconds(nodes).items())
    print(f"{nodes} runs, 512 tokens: {times}")


if __name__ == "__main__":
    main()
