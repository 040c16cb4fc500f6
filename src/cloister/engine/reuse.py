"""Between sequences and the prefix cache: what they take from it and give to it, and counts by policy."""

from cloister.engine.sequence import Sequence
from cloister.levels import PolicyName
from cloister.messages.generation import Reuse
from cloister.prefix.base import NOTHING, Found, Paging, PrefixCache, PrefixKey


class PrefixReuse:
    def __init__(self, prefix: PrefixCache, block_tokens: int) -> None:
        self._prefix, self._block_tokens = prefix, block_tokens
        self.counts: dict[PolicyName, Reuse] = {}

    def expect(self, sequence: Sequence) -> None:
        if (key := self._lookup_key(sequence)) is not None:
            self._prefix.expect(key)

    def find(self, sequence: Sequence) -> Found:
        """The caller releases the blocks."""
        key = self._lookup_key(sequence)  # a prompt's last token is always computed
        return NOTHING if key is None else self._prefix.lookup(key, key.paging.pages(len(sequence.tokens) - 1))

    def begin(self, sequence: Sequence, found: Found) -> None:
        """The first time, the pages found count as the sequence's hit."""
        key, prefix = self._key(sequence), sequence.prefix
        sequence.computed = 0 if key is None else key.paging.positions(len(found.blocks))
        prefix.kept = 0
        if prefix.found is None:
            prefix.found = sequence.computed
            if key is not None:
                prefix.found_shared = key.paging.positions(found.shared)
                prefix.shown = key.paging.positions(found.shown)
                self._count(key.policy, prefix.found)

    def keep(self, sequence: Sequence) -> None:
        prefix = sequence.prefix
        if prefix.key is not None and (pages := prefix.key.paging.pages(sequence.computed)) > prefix.kept:
            self._prefix.insert(prefix.key, sequence.blocks.all[:pages])
            prefix.kept = pages

    def _count(self, policy: PolicyName, found: int) -> None:
        counts, hit = self.counts.get(policy, Reuse()), bool(found)
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
