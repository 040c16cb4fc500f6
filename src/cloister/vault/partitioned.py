"""Prompts at `partitioned` and `obfuscated`: prefilled here up to the first token, then exposed to the link (Petridish
§4.1, Theorem 1). Public blocks are not exposed: the service holds those keys itself. At `obfuscated` blocks before the
first secret are held once for all λ+1 prompts (ADR 11), and the rest, too, where the request allows it (`compact`). A
vault remembers past prompts."""

from collections import deque
from collections.abc import Sequence as Numbers
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from cloister.compute.base import LinkAnswerer
from cloister.compute.layout import BLOCK_TOKENS, Chunk, Layout, Wanted
from cloister.config import EngineSettings
from cloister.engine.base import EngineRequest
from cloister.engine.runner import BlockPool, Runner
from cloister.engine.sampler import Sampler
from cloister.engine.sequence import Sequence
from cloister.errors import PromptTooLong, QueueFull
from cloister.messages.controller_vault import FirstToken, Prefilled
from cloister.messages.types import TokenLogprob
from cloister.prefix.base import Found, Pool, PrefixCache, PrefixKey
from cloister.vault.compact import Compact

Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Recalled:
    """`blocks` hold the first `computed` positions of a prompt. The caller releases them like its own."""

    blocks: list[int]
    computed: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Past:
    tokens: Tokens
    public: int
    blocks: tuple[int, ...]


class SessionMemory(PrefixCache):
    """The blocks of past prompts, to which it holds references; the least recently used first. At `partitioned` an
    answer's keys live at the service, and the next turn's prefill computes them. `isolated` has it as prefix cache."""

    def __init__(self) -> None:
        self.pool: Pool = BlockPool(0)
        self._past: deque[_Past] = deque()

    def attach(self, pool: Pool, page_tokens: int) -> None:
        self.pool = pool

    def recall(self, tokens: Numbers[int], public: int) -> Recalled:
        """The whole blocks of the longest remembered beginning; the last token is always computed, for its logits."""
        wanted = np.asarray(tokens[:-1], dtype=np.int64)
        longest, best = 0, None
        for past in self._past:
            if (reusable := _reusable(past, wanted, public)) > longest:
                longest, best = reusable, past
        if best is None:
            return Recalled([], 0)
        self._past.remove(best)
        self._past.append(best)
        blocks = list(best.blocks[: Layout(prompt=len(tokens), public=public).blocks(longest)])
        self.pool.retain(blocks)
        return Recalled(blocks, longest)

    def keep(self, tokens: Numbers[int], public: int, blocks: Numbers[int]) -> None:
        """Older prompts that it begins with are let go."""
        length = whole(len(tokens), public)
        if not length:
            return
        new = np.asarray(tokens[:length], dtype=np.int64)
        held = tuple(blocks[: Layout(prompt=len(tokens), public=public).blocks(length)])
        self.pool.retain(held)
        for past in list(self._past):
            if past.public == public and common(new, past.tokens) == len(past.tokens):
                self._let_go(past)
        self._past.append(_Past(new, public, held))

    def make_room(self, count: int) -> bool:
        """Whether `count` blocks are free, after letting go of what was not used for longest."""
        while self.pool.free < count and self._past:
            self._let_go(self._past[0])
        return self.pool.free >= count

    def lookup(self, key: PrefixKey, most: int) -> Found:
        return Found(tuple(self.recall([*_pages(key, most), -1], public=0).blocks))

    def insert(self, key: PrefixKey, blocks: Numbers[int]) -> None:
        self.keep(_pages(key, len(blocks)), 0, blocks)

    def evict(self, count: int) -> None:
        self.make_room(self.pool.free + count)

    def _let_go(self, past: _Past) -> None:
        self._past.remove(past)
        self.pool.release(past.blocks)


def _pages(key: PrefixKey, pages: int) -> list[int]:
    """As a prompt of one segment (Paging.pack tells segments apart)."""
    tokens: list[int] = np.frombuffer(key.tokens, dtype="<i4")[: pages * BLOCK_TOKENS].tolist()
    return tokens


def _reusable(past: _Past, wanted: Tokens, public: int) -> int:
    """All whole blocks of the common beginning if both are split at the same position; otherwise those of both first
    segments: a later segment's keys are rounded by the split (compute.layout.Layout)."""
    equal = common(past.tokens, wanted)
    if past.public == public:
        return whole(equal, public)
    return whole(min(equal, past.public or len(past.tokens), public or equal), 0)


def whole(length: int, public: int) -> int:
    """How many of the first positions lie in blocks that are never written again: full ones, and all public ones."""
    if length < public:
        return length // BLOCK_TOKENS * BLOCK_TOKENS
    return public + (length - public) // BLOCK_TOKENS * BLOCK_TOKENS


def common(first: npt.ArrayLike, second: npt.ArrayLike) -> int:
    one, other = np.asarray(first, dtype=np.int64), np.asarray(second, dtype=np.int64)
    shorter = min(len(one), len(other))
    differs = one[:shorter] != other[:shorter]
    return int(differs.argmax()) if differs.any() else shorter


@dataclass(slots=True, eq=False, repr=False)
class _Prompts:
    """`slots` and `logprobs` have an entry for each prompt that is prefilled."""

    sequences: list[Sequence]
    compact: Compact | None = None
    slots: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob | None] = field(default_factory=list)

    @property
    def next(self) -> Sequence:
        return self.sequences[len(self.slots)]

    @property
    def done(self) -> bool:
        return len(self.slots) == len(self.sequences)

    def blocks(self) -> int:
        """A common beginning counts once."""
        first, *others = self.sequences
        count = first.layout.blocks(first.prompt_length)
        for other in others:
            count += other.layout.blocks(other.prompt_length) - other.layout.blocks(self.shared(other))
        return count

    def make_compact(self, compact: Compact, max_context: int, relative: bool) -> None:
        """Where that saves anything and leaves room for an answer."""
        if not compact.saves or max(compact.ends) >= max_context:
            return
        self.compact = compact
        for variant, sequence in enumerate(self.sequences):
            sequence.layout = compact.layout(variant, relative)
            room = min(sequence.params.max_tokens, max_context - compact.ends[variant])
            sequence.limit = sequence.prompt_length + room

    def shared(self, other: Sequence) -> int:
        """With the first, in whole blocks; the last token is always computed."""
        first = self.sequences[0]
        if first is other:
            return 0
        if self.compact is not None:
            return self.compact.common
        equal = common(first.tokens[: first.prompt_length], other.tokens[: other.prompt_length - 1])
        return whole(equal, first.layout.public)


class Partitioned:
    """First come, first served: one prompt at a time, a chunk at a time."""

    def __init__(self, runner: Runner, settings: EngineSettings, memory: SessionMemory, answerer: LinkAnswerer) -> None:
        self._runner = runner
        self._sampler = Sampler(runner.vocabulary, runner.draw_rows)
        self._memory, self._answerer = memory, answerer
        self._chunk = settings.chunk_tokens
        self._most_waiting = settings.max_waiting_per_tenant
        self._waiting: dict[int, _Prompts] = {}
        self._exposed: dict[int, _Prompts] = {}

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._waiting or request_id in self._exposed

    def add(self, *requests: EngineRequest) -> None:
        """The prompts of one request; raises why it cannot be served."""
        most, relative = self._runner.max_context, self._runner.relative
        prompts = _Prompts([Sequence.of(one, arrival=0, max_context=most, relative=relative) for one in requests])
        if requests[0].compact and len(requests) > 1:
            prompts.make_compact(Compact([one.prompt for one in requests], requests[0].public), most, relative)
        total = self._memory.pool.total
        if prompts.blocks() > total:
            longest = max(sequence.prompt_length for sequence in prompts.sequences)
            among = f" and goes among {len(requests)}" if len(requests) > 1 else ""
            fewer = ", or have fewer fakes" if among else ""
            raise PromptTooLong(
                f"The prompt has {longest} tokens{among}; a vault holds {total * BLOCK_TOKENS} at most.",
                param="prompt",
                hint=f"Shorten the prompt{fewer}, or start the server with more --vault-kv-mib.",
            )
        if len(self._waiting) >= self._most_waiting:
            raise QueueFull(f"{self._most_waiting} requests of this session wait already.")
        self._waiting[requests[0].request_id] = prompts

    def drop(self, request_id: int) -> None:
        """One that is not here ended already."""
        prompts = self._waiting.pop(request_id, None) or self._exposed.pop(request_id, None)
        if prompts is not None:
            for slot in prompts.slots:
                self._answerer.withdraw(slot)
            for sequence in prompts.sequences:
                self._memory.pool.release(sequence.blocks.all)

    @property
    def next_request(self) -> int | None:
        """None if none waits, or the first lacks blocks or a slot. Requests that have all their slots end."""
        for request_id, prompts in self._waiting.items():
            return request_id if self._answerer.free_slot() is not None and self._has_blocks(prompts) else None
        return None

    @property
    def next_tokens(self) -> int:
        request_id = self.next_request
        return 0 if request_id is None else min(self._chunk, self._waiting[request_id].next.remaining)

    def work(self, request_id: int, most: int) -> Prefilled | None:
        """With the last chunk of all prompts, the answers' first tokens."""
        prompts = self._waiting[request_id]
        sequence = prompts.next
        logits = self._prefill(sequence, min(most, self._chunk), prompts)
        if sequence.computed < sequence.prompt_length:
            return None
        # Only exact keys are remembered: what follows the first difference of compact prompts serves no other request.
        prompt = sequence.tokens[: prompts.compact.prefix if prompts.compact else sequence.prompt_length]
        sampled = self._sampler.sample(logits, [sequence], [0])
        sequence.append(sampled.tokens[0])
        self._memory.keep(prompt, sequence.layout.public, sequence.blocks.all)
        prompts.logprobs.append(sampled.logprobs[0])
        prompts.slots.append(self._expose(sequence))
        return self._prefilled(request_id, prompts) if prompts.done else None

    def _prefilled(self, request_id: int, prompts: _Prompts) -> Prefilled:
        """Several sequences end together: none ends with its first token alone."""
        left = min(sequence.limit - sequence.prompt_length for sequence in prompts.sequences)
        first = prompts.sequences[0]
        if len(prompts.sequences) > 1:
            for sequence in prompts.sequences:
                sequence.output.finish = "length" if left == 1 else None
        firsts = tuple(
            FirstToken(
                token=sequence.tokens[-1],
                slot=slot,
                origin=sequence.layout.origin,
                # Without a public span the service does not need the rotation, which shows the prompt's length.
                rotation=sequence.layout.rotation if sequence.layout.public else 0,
                logprob=logprob,
                finish=sequence.output.finish,
            )
            for sequence, slot, logprob in zip(prompts.sequences, prompts.slots, prompts.logprobs, strict=True)
        )
        self._exposed[request_id] = self._waiting.pop(request_id)
        if first.output.finish is not None:
            self.drop(request_id)
        return Prefilled(request_id, firsts, max_tokens=left, public=tuple(first.tokens[: first.layout.public]))

    def _prefill(self, sequence: Sequence, most: int, prompts: _Prompts) -> torch.Tensor:
        """Rows do not depend on the rest of the batch, so the engine would choose the same first token."""
        start, layout, blocks = sequence.computed, sequence.layout, sequence.blocks.all
        if prompts.compact is not None:
            chunk = prompts.compact.chunk(len(prompts.slots), start, most, blocks)
        else:
            end = min(start + most, sequence.prompt_length)
            wanted = Wanted.LAST if end == sequence.prompt_length else Wanted.NONE
            chunk = Chunk(sequence.tokens[start:end], start, blocks[: layout.blocks(end)], layout, wanted)
        logits = self._runner.forward([chunk])
        sequence.computed += len(chunk.tokens)
        return logits

    def _has_blocks(self, prompts: _Prompts) -> bool:
        """All at once, so that no prompt waits half computed."""
        sequence = prompts.next
        if sequence.blocks.all:
            return True
        layout, pool = sequence.layout, self._memory.pool
        lent, computed = self._lent(prompts, sequence)
        need = layout.blocks(sequence.prompt_length) - len(lent)
        own = pool.allocate(need) if self._memory.make_room(need) else None
        if own is None:
            pool.release(lent)
            return False
        sequence.blocks.all, sequence.computed = lent + own, computed
        return True

    def _lent(self, prompts: _Prompts, sequence: Sequence) -> tuple[list[int], int]:
        """Of a past prompt, or of this request's first."""
        exact = prompts.compact.prefix + 1 if prompts.compact else sequence.prompt_length
        recalled = self._memory.recall(sequence.tokens[:exact], sequence.layout.public)
        shared = prompts.shared(sequence)
        if shared <= recalled.computed:
            return recalled.blocks, recalled.computed
        self._memory.pool.release(recalled.blocks)
        blocks = prompts.sequences[0].blocks.all[: sequence.layout.blocks(shared)]
        self._memory.pool.retain(blocks)
        return blocks, shared

    def _expose(self, sequence: Sequence) -> int:
        layout, slot = sequence.layout, self._answerer.free_slot()
        assert slot is not None, "one was free when the prompt's turn came, and only this takes any"
        private = sequence.blocks.all[layout.blocks(layout.public) :]
        self._answerer.expose(slot, private, start=layout.public, end=layout.prompt, rotation=layout.rotation)
        return slot
