"""Prompts at `partitioned` and `obfuscated`: prefilled here up to the first token, then exposed to the link (Petridish
§4.1, Theorem 1). Public blocks are not exposed: the service holds those keys itself. At `obfuscated` blocks before the
first secret are held once for all λ+1 prompts (ADR 11), and others, too, if the request allows it (`compact`). A vault
remembers past prompts, except compact ones."""

from dataclasses import dataclass, field

import numpy as np
import torch

from cloister.compute.base import LinkAnswerer
from cloister.compute.layout import BLOCK_TOKENS, Chunk, Wanted
from cloister.config import EngineSettings
from cloister.engine.base import EngineRequest
from cloister.engine.reuse import PrefixReuse
from cloister.engine.runner import Runner
from cloister.engine.sampler import Sampler
from cloister.engine.sequence import Group, Sequence
from cloister.errors import PromptTooLong, QueueFull
from cloister.messages.controller_vault import FirstToken, Prefilled
from cloister.messages.types import TokenLogprob
from cloister.prefix.base import Found, Paging
from cloister.prefix.radix import RadixCache
from cloister.vault.answer_blocks import AnswerBlocks
from cloister.vault.compact import Compact


class SessionMemory(RadixCache):
    """Past prompts of one session. At `partitioned` an answer's keys live at the service, and the next turn's prefill
    computes them. `isolated` has it as prefix cache."""

    keeps_answers = False
    lookups_per_epoch = 1


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
            shared = self.compact.common if self.compact else _shared(first, other)
            count += other.layout.blocks(other.prompt_length) - other.layout.blocks(shared)
        return count

    def make_compact(self, compact: Compact, max_context: int, relative: bool) -> None:
        """Where that saves anything and leaves room for an answer. Approximate keys stay out of the session's memory:
        an exact prompt would find them there."""
        if not compact.saves or max(compact.ends) >= max_context:
            return
        self.compact = compact
        for variant, sequence in enumerate(self.sequences):
            sequence.prefix.policy = "none"
            sequence.layout = compact.layout(variant, relative)
            room = min(sequence.params.max_tokens, max_context - compact.ends[variant])
            sequence.limit = sequence.prompt_length + room


def _shared(one: Sequence, other: Sequence) -> int:
    """In whole blocks; the last token is always computed."""
    first, second = np.asarray(one.tokens[: one.prompt_length]), np.asarray(other.tokens[: other.prompt_length - 1])
    shorter = min(len(first), len(second))
    equal = int(np.argmin(np.append(first[:shorter] == second[:shorter], False)))
    paging = Paging(one.layout.public, equal, BLOCK_TOKENS)
    return paging.positions(paging.pages(equal))


class Partitioned:
    """First come, first served: one prompt at a time, a chunk at a time."""

    def __init__(
        self,
        runner: Runner,
        settings: EngineSettings,
        memory: SessionMemory,
        answerer: LinkAnswerer,
        answers: AnswerBlocks | None = None,
    ) -> None:
        self._runner, self._answers = runner, answers
        self._sampler = Sampler(runner.vocabulary, runner.draw_rows, runner.mask_row)
        self._memory, self._answerer = memory, answerer
        self._reuse = PrefixReuse(memory, BLOCK_TOKENS)
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
        if self._answers is not None and not self._answers.ever_hold(prompts.sequences):
            hint = "Ask for fewer tokens (max_tokens), or start the server with more --vault-kv-mib."
            raise PromptTooLong("A vault cannot hold an answer so long.", param="max_tokens", hint=hint)
        if len(self._waiting) >= self._most_waiting:
            raise QueueFull(f"{self._most_waiting} requests of this session wait already.")
        self._waiting[requests[0].request_id] = prompts

    def exposed(self, request_id: int) -> list[tuple[Sequence, int]] | None:
        """Each with its slot."""
        prompts = self._exposed.get(request_id)
        return None if prompts is None else list(zip(prompts.sequences, prompts.slots, strict=True))

    def drop(self, request_id: int) -> None:
        """One that is not here ended already."""
        prompts = self._waiting.pop(request_id, None) or self._exposed.pop(request_id, None)
        if prompts is not None:
            for slot in prompts.slots:
                self._answerer.withdraw(slot)
            for sequence in prompts.sequences:
                self._memory.pool.release(sequence.blocks.all)
                if self._answers is not None:
                    self._answers.release(sequence)

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
        self._reuse.keep(sequence)
        sampled = self._sampler.sample(logits, [sequence], [0])
        sequence.append(sampled.tokens[0])
        prompts.logprobs.append(sampled.logprobs[0])
        prompts.slots.append(self._expose(sequence))
        return self._prefilled(request_id, prompts) if prompts.done else None

    def _prefilled(self, request_id: int, prompts: _Prompts) -> Prefilled:
        """Several sequences end together: none ends with its first token alone."""
        left = min(sequence.limit - sequence.prompt_length for sequence in prompts.sequences)
        first = prompts.sequences[0]
        if len(prompts.sequences) > 1:
            group = Group(len(prompts.sequences))
            for sequence in prompts.sequences:
                sequence.output.finish = "length" if left == 1 else None
                sequence.group, sequence.limit = group, sequence.prompt_length + left
                group.join(sequence)
            group.note()
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
        public = tuple(first.tokens[: first.layout.public])
        return Prefilled(request_id, firsts, max_tokens=left, public=public, seed=first.params.known_seed)

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
        if self._answers is not None and not self._answers.hold(prompts.sequences):
            return False
        found, pool = self._reuse.find(sequence), self._memory.pool
        if prompts.compact and prompts.slots:
            found = Found(tuple(prompts.sequences[0].blocks.all[: sequence.layout.blocks(prompts.compact.common)]))
            pool.retain(found.blocks)
        need = sequence.layout.blocks(sequence.prompt_length) - len(found.blocks)
        own = pool.allocate(need) if self._memory.make_room(need) else None
        if own is None:
            pool.release(found.blocks)
            return False
        sequence.blocks.all = [*found.blocks, *own]
        self._reuse.begin(sequence, found)
        if prompts.compact and prompts.slots:
            sequence.computed = prompts.compact.common
        return True

    def _expose(self, sequence: Sequence) -> int:
        layout, slot = sequence.layout, self._answerer.free_slot()
        assert slot is not None, "one was free when the prompt's turn came, and only this takes any"
        private = sequence.blocks.all[layout.blocks(layout.public) :]
        if self._answers is not None:
            self._answers.begin(sequence, slot, self._answerer)
        self._answerer.expose(slot, private, start=layout.public, end=layout.prompt, rotation=layout.rotation)
        return slot
