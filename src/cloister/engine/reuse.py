"""Between sequences and the prefix cache: what they take from it and give to it, and counts by policy."""

from cloister.engine.sequence import Sequence
from cloister.levels import PolicyName
from cloister.messages.generation import Reuse
from cloister.prefix.base import NOTHING, Found, Paging, Pool, PrefixCache, PrefixKey

ALONE_WAITS_S = 0.05  # without company, a sequence waits this long for a lower tier: to compute the pages takes longer
MAX_LOOKUPS = 4  # between a prompt's chunks while a lower tier reads: the monitor counts each as a hit


class PrefixReuse:
    def __init__(self, prefix: PrefixCache, pool: Pool, block_tokens: int) -> None:
        self._prefix, self._pool, self._block_tokens = prefix, pool, block_tokens
        self.counts: dict[PolicyName, Reuse] = {}

    def expect(self, sequence: Sequence) -> None:
        if (key := self._lookup_key(sequence)) is not None:
            self._prefix.prefetch(key, _most_pages(sequence, key))

    def find(self, sequence: Sequence, *, alone: bool) -> Found:
        """A sequence that is `alone` waits a little for a lower tier. The caller releases the blocks."""
        if (key := self._lookup_key(sequence)) is None:
            return NOTHING
        found = self._prefix.lookup(key, _most_pages(sequence, key))
        if found.coming and alone:
            self._pool.release(found.blocks)
            self._prefix.settle(ALONE_WAITS_S)
            found = self._prefix.lookup(key, _most_pages(sequence, key))
        return found

    def begin(self, sequence: Sequence, found: Found) -> None:
        """The first time, the pages found count as the sequence's hit."""
        key, prefix = self._key(sequence), sequence.prefix
        sequence.computed = 0 if key is None else key.paging.positions(len(found.blocks))
        prefix.lookups_left = MAX_LOOKUPS if found.coming else 0
        prefix.kept = 0
        if prefix.found is None:
            prefix.found = sequence.computed
            if key is not None:
                prefix.found_shared = key.paging.positions(found.shared)
                prefix.shown = key.paging.positions(found.shown)
                self._count(key.policy, prefix.found)

    def catch_up(self, sequence: Sequence) -> None:
        prefix, held = sequence.prefix, sequence.blocks
        key = prefix.key
        if not prefix.lookups_left or key is None:
            return
        found = self._prefix.lookup(key, _most_pages(sequence, key))
        pages, before = len(found.blocks), sequence.computed
        prefix.lookups_left = prefix.lookups_left - 1 if found.coming else 0
        if key.paging.positions(pages) <= before:
            self._pool.release(found.blocks)
            return
        self._pool.release(held.all[:pages])
        held.all[:pages] = found.blocks
        held.lent, held.public = pages, found.public
        sequence.computed = key.paging.positions(pages)
        if not sequence.output.prompt_reported:
            self._count(key.policy, sequence.computed - before, already=prefix.found)
            prefix.found = (prefix.found or 0) + sequence.computed - before
            prefix.found_shared += max(0, key.paging.positions(found.shared) - before)
            prefix.shown += max(0, key.paging.positions(found.shown) - before)

    def keep(self, sequence: Sequence) -> None:
        prefix = sequence.prefix
        if prefix.key is not None and (pages := prefix.key.paging.pages(sequence.computed)) > prefix.kept:
            self._prefix.insert(prefix.key, sequence.blocks.all[:pages])
            prefix.kept = pages

    def _count(self, policy: PolicyName, found: int, already: int | None = None) -> None:
        counts = self.counts.get(policy, Reuse())
        if already is not None:
            counts = Reuse(counts.hits - (already > 0), counts.misses - (not already), counts.tokens)
        hit = bool(found or already)
        self.counts[policy] = Reuse(counts.hits + hit, counts.misses + (not hit), counts.tokens + found)

    def _key(self, sequence: Sequence) -> PrefixKey | None:
        """None if the policy reuses nothing."""
        prefix = sequence.prefix
        if prefix.key is None and prefix.policy != "none":
            paging = Paging(sequence.layout.public, sequence.layout.prompt, self._block_tokens)
            tokens = paging.pack(sequence.tokens)
            prefix.key = PrefixKey(sequence.request_id, sequence.tenant, prefix.salt, prefix.policy, paging, tokens)
        return prefix.key

    def _lookup_key(self, sequence: Sequence) -> PrefixKey | None:
        return None if sequence.owes_prompt_logprobs else self._key(sequence)


def _most_pages(sequence: Sequence, key: PrefixKey) -> int:
    """A prompt's last token is always computed."""
    return key.paging.pages(len(sequence.tokens) - 1)
