"""Answers become pages of the next turn's prompt (SafeKV §VI: insert after decoding). An answer is decoded as another
segment, so that levels agree (compute.layout.Layout); in a prompt its keys have other bits. So it is computed again, as
a prompt, while the engine has no request. Until then a turn holds tokens, but no block."""

from collections import Counter
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from cloister.compute.layout import Chunk, Layout
from cloister.engine.sequence import Sequence
from cloister.prefix.base import BlockPool, Paging, PrefixCache, PrefixKey

MAX_TURNS = 64  # that wait; then the tenant with the most of them loses its oldest


@dataclass(slots=True, eq=False, repr=False)
class _Turn:
    key: PrefixKey
    layout: Layout
    tokens: list[int]  # those of whole pages
    blocks: list[int] = field(default_factory=list)
    computed: int = 0

    def __repr__(self) -> str:
        return f"<Turn: {self.computed} of {len(self.tokens)} computed>"


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
