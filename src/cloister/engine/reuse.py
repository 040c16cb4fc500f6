"""What sequences take from the prefix cache and give to it, and how much that was, by policy."""

from __future__ import annotations

from cloister.engine.blocks import BlockPool
from cloister.engine.sequence import Sequence
from cloister.levels import PolicyName
from cloister.messages.generation import Reuse
from cloister.prefix.base import NOTHING, Found, PrefixCache, PrefixKey
from cloister.prefix.paging import Paging

ALONE_WAITS_S = 0.05
"""For what a lower tier brings, while nobody else is here whose step could be held up. To compute it takes longer."""
LOOKS_AGAIN = 4
"""Between a prompt's chunks, for what a lower tier brings: a monitor takes each look at what is public for a hit."""


class PrefixReuse:
    """Between sequences and the prefix cache. What is found are blocks of the pool, held for who asked."""

    def __init__(self, prefix: PrefixCache, pool: BlockPool, block_tokens: int) -> None:
        self._prefix, self._pool, self._block_tokens = prefix, pool, block_tokens
        self.counts: dict[PolicyName, Reuse] = {}

    def expect(self, sequence: Sequence) -> None:
        """The sequence waits: what lower tiers have of its prompt is brought meanwhile."""
        if (key := self._lookup_key(sequence)) is not None:
            self._prefix.prefetch(key, _most_pages(sequence, key))

    def find(self, sequence: Sequence, *, alone: bool) -> Found:
        """What the cache has of a prompt. One that is `alone` waits a little for what a lower tier brings."""
        if (key := self._lookup_key(sequence)) is None:
            return NOTHING
        found = self._prefix.lookup(key, _most_pages(sequence, key))
        if found.coming and alone:
            self._pool.release(found.blocks)
            self._prefix.settle(ALONE_WAITS_S)
            found = self._prefix.lookup(key, _most_pages(sequence, key))
        return found

    def begin(self, sequence: Sequence, found: Found) -> None:
        """The sequence runs, from behind what was found. Its request is told of what it found the first time."""
        key = self._key(sequence)
        sequence.looks = LOOKS_AGAIN if found.coming else 0
        sequence.computed = 0 if key is None else key.paging.positions(len(found.blocks))
        sequence.kept = 0
        if sequence.cached is None:
            sequence.cached = sequence.computed
            if key is not None:
                sequence.shared = key.paging.positions(found.public)
                self._count(key.policy, sequence.cached)

    def catch_up(self, sequence: Sequence) -> None:
        """Take what a lower tier has brought since the sequence began; the rest is computed."""
        key = sequence.key
        if not sequence.looks or key is None:
            return
        found = self._prefix.lookup(key, _most_pages(sequence, key))
        pages, before = len(found.blocks), sequence.computed
        sequence.looks = sequence.looks - 1 if found.coming else 0
        if key.paging.positions(pages) <= before:
            self._pool.release(found.blocks)
            return
        self._pool.release(sequence.blocks[:pages])
        sequence.blocks[:pages] = found.blocks
        sequence.lent, sequence.lent_public = pages, found.public
        sequence.computed = key.paging.positions(pages)
        if not sequence.prompt_reported:
            self._count(key.policy, sequence.computed - before, already=sequence.cached)
            sequence.cached = (sequence.cached or 0) + sequence.computed - before
            sequence.shared += max(0, key.paging.positions(found.public) - before)

    def keep(self, sequence: Sequence) -> None:
        """Give the cache what is computed of a prompt by now."""
        if sequence.key is not None and (pages := sequence.key.paging.pages(sequence.computed)) > sequence.kept:
            self._prefix.insert(sequence.key, sequence.blocks[:pages])
            sequence.kept = pages

    def _count(self, policy: PolicyName, found: int, already: int | None = None) -> None:
        """A request found so many tokens, beside those that it had `already` been told of, if it had."""
        told = self.counts.get(policy, Reuse())
        if already is not None:
            told = Reuse(told.hits - (already > 0), told.misses - (not already), told.tokens)
        hit = bool(found or already)
        self.counts[policy] = Reuse(told.hits + hit, told.misses + (not hit), told.tokens + found)

    def _key(self, sequence: Sequence) -> PrefixKey | None:
        """What the cache is asked with; None where it is not asked."""
        if sequence.key is None and sequence.policy != "none":
            layout = sequence.layout
            paging = Paging(layout.public, layout.prompt, self._block_tokens)
            tokens = paging.pack(sequence.tokens)
            sequence.key = PrefixKey(
                sequence.request_id, sequence.tenant, sequence.salt, sequence.policy, paging, tokens
            )
        return sequence.key

    def _lookup_key(self, sequence: Sequence) -> PrefixKey | None:
        """As `_key`, but a forced pass looks nothing up: it needs, so it computes, every row."""
        return None if sequence.owes_prompt_logprobs else self._key(sequence)


def _most_pages(sequence: Sequence, key: PrefixKey) -> int:
    """A prompt's last token is always computed."""
    return key.paging.pages(len(sequence.tokens) - 1)
