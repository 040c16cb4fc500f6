"""What sequences take from the prefix cache and give to it. An answer becomes pages of the next prompt (SafeKV §VI):
decoding gave its keys other bits (compute.layout.Layout), so it is computed again, as a prompt, when the engine is
idle. Until then a turn holds tokens, but no block."""

from collections import Counter
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from cloister.compute.layout import Chunk, Layout
from cloister.engine.sequence import Sequence
from cloister.levels import PolicyName
from cloister.messages.generation import Reuse
from cloister.prefix.base import NOTHING, BlockPool, Found, Paging, PrefixCache, PrefixKey

MAX_TURNS = 64  # that wait; then the tenant with the most of them loses its oldest


@dataclass(slots=True, eq=False, repr=False)
class _Turn:
    key: PrefixKey
    layout: Layout
    tokens: list[int]  # those of whole pages
    blocks: list[int] = field(default_factory=list)
    computed: int = 0


class Answers:
    def __init__(self, pool: BlockPool, prefix: PrefixCache) -> None:
        self._pool, self._prefix = pool, prefix
        self._turns: list[_Turn] = []  # oldest first; only the first has blocks

    def __len__(self) -> int:
        return len(self._turns)

    def take(self, sequence: Sequence) -> None:
        """A sequence that ended or was cancelled: its prompt is the tenant's next prompt's beginning, perhaps."""
        key, layout = sequence.prefix.key, sequence.layout
        if key is None or layout.remote is not None or not self._prefix.keeps_answers:
            return
        paging = Paging(layout.public, len(sequence.tokens), key.paging.size)
        tokens = sequence.tokens[: paging.positions(paging.pages(paging.prompt))]
        if len(tokens) <= layout.prompt:
            return  # no page more than the prompt has
        length = len(tokens)
        as_prompt = Layout(length, layout.public, length * bool(layout.origin), length * bool(layout.rotation))
        longer = PrefixKey(
            key.request_id, key.tenant, key.salt, key.policy, paging, paging.pack(tokens), labelled_as=key
        )
        self._turns.append(_Turn(longer, as_prompt, tokens))
        if len(self._turns) > MAX_TURNS:
            [(most, _)] = Counter(turn.key.tenant for turn in self._turns).most_common(1)
            self._drop(next(turn for turn in self._turns if turn.key.tenant == most))

    def next(self, most: int) -> Chunk | None:
        """Up to `most` tokens of the oldest turn. One whose prompt is cached no more, or without room, is dropped."""
        while self._turns:
            turn = self._turns[0]
            if turn.computed or self._resume(turn):
                start, end = turn.computed, min(turn.computed + most, len(turn.tokens))
                if self._grow(turn, turn.layout.blocks(end)):
                    return Chunk(turn.tokens[start:end], start, turn.blocks, turn.layout)
            self._drop(turn)
        return None

    def computed(self, chunk: Chunk) -> None:
        turn = self._turns[0]
        turn.computed = chunk.start + len(chunk.tokens)
        self._prefix.insert(turn.key, turn.blocks[: turn.key.paging.pages(turn.computed)])
        if turn.computed == len(turn.tokens):
            self._drop(turn)

    def make_way(self, tenant: str, prompt: Items[int]) -> None:
        """A request came: give up blocks, and turns whose answers it computes itself."""
        for turn in list(self._turns):
            self._vacate(turn)
            if turn.key.tenant == tenant and turn.tokens == list(prompt[: len(turn.tokens)]):
                self._drop(turn)

    def forget(self, tenant: str | None = None) -> None:
        for turn in [turn for turn in self._turns if tenant in (None, turn.key.tenant)]:
            self._drop(turn)

    def _resume(self, turn: _Turn) -> bool:
        before = turn.key.labelled_as
        assert before is not None
        turn.blocks = list(self._prefix.resume(turn.key))
        turn.computed = turn.key.paging.positions(len(turn.blocks))
        return len(turn.blocks) >= before.paging.pages(before.paging.prompt) and turn.computed < len(turn.tokens)

    def _grow(self, turn: _Turn, blocks: int) -> bool:
        need = blocks - len(turn.blocks)
        own = self._pool.allocate(need) if self._prefix.make_room(need) else None
        turn.blocks += own or ()
        return own is not None

    def _vacate(self, turn: _Turn) -> None:
        self._pool.release(turn.blocks)
        turn.blocks, turn.computed = [], 0

    def _drop(self, turn: _Turn) -> None:
        self._vacate(turn)
        self._turns.remove(turn)


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
