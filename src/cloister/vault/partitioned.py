"""Prompts at the level `partitioned`: prefilled here up to the first token, then exposed to the link.

From then on the service decodes and asks this vault, layer by layer, for the attention over the private span
(Petridish §4.1, Theorem 1). Public blocks are never exposed: the service holds those keys itself.
"""

from __future__ import annotations

import torch

from cloister.compute.base import LinkAnswerer
from cloister.compute.layout import BLOCK_TOKENS, Chunk, Wanted
from cloister.config import EngineSettings
from cloister.engine.runner import Runner
from cloister.engine.sampler import Sampler
from cloister.engine.sequence import Sequence
from cloister.errors import PromptTooLong, QueueFull
from cloister.messages.generation import Submit
from cloister.messages.vault import FirstToken, Prefilled
from cloister.vault.memory import SessionMemory


class Partitioned:
    """First come, first served: one prompt at a time, a chunk at a time."""

    def __init__(self, runner: Runner, settings: EngineSettings, memory: SessionMemory, answerer: LinkAnswerer) -> None:
        self._runner = runner
        self._sampler = Sampler(runner.vocabulary, runner.draw_rows)
        self._memory = memory
        self._answerer = answerer
        self._chunk = settings.chunk_tokens
        self._most_waiting = settings.max_waiting_per_tenant
        self._waiting: dict[int, Sequence] = {}
        self._exposed: dict[int, tuple[Sequence, int]] = {}

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._waiting or request_id in self._exposed

    def add(self, request: Submit) -> None:
        """Queue a prompt, or raise why it cannot be served."""
        sequence = Sequence.of(request, arrival=0, max_context=self._runner.max_context, relative=self._runner.relative)
        total = self._memory.pool.total
        if sequence.layout.blocks(sequence.prompt_length) > total:
            raise PromptTooLong(
                f"The prompt has {sequence.prompt_length} tokens; a vault holds {total * BLOCK_TOKENS} at most.",
                param="prompt",
                hint="Shorten the prompt, or start the server with more --vault-kv-mib.",
            )
        if len(self._waiting) >= self._most_waiting:
            raise QueueFull(f"{self._most_waiting} requests of this session wait already.")
        self._waiting[request.request_id] = sequence

    def drop(self, request_id: int) -> None:
        """End a request in whatever state it is; one that is not here ended already."""
        if (waiting := self._waiting.pop(request_id, None)) is not None:
            self._memory.pool.release(waiting.blocks)
        elif (exposed := self._exposed.pop(request_id, None)) is not None:
            sequence, slot = exposed
            self._answerer.withdraw(slot)
            self._memory.pool.release(sequence.blocks)

    @property
    def next_request(self) -> int | None:
        """Whose chunk `work` would compute; None where nobody waits, or who does must wait for blocks or a slot."""
        for request_id, sequence in self._waiting.items():
            return request_id if self._answerer.free_slot() is not None and self._has_blocks(sequence) else None
        return None

    @property
    def next_tokens(self) -> int:
        request_id = self.next_request
        return 0 if request_id is None else min(self._chunk, self._waiting[request_id].remaining)

    def work(self, request_id: int, most: int) -> Prefilled | None:
        """Compute one chunk of this prompt, of `most` tokens; with its last, the answer's first token."""
        sequence = self._waiting[request_id]
        logits = self._prefill(sequence, min(most, self._chunk))
        if sequence.computed < sequence.prompt_length:
            return None
        prompt, layout = tuple(sequence.tokens), sequence.layout
        sampled = self._sampler.sample(logits, [sequence], [0])
        sequence.append(sampled.tokens[0])
        self._memory.keep(prompt, layout.public, sequence.blocks)
        slot = self._expose(sequence)
        if sequence.finish is not None:
            self.drop(request_id)
        first = FirstToken(
            token=sequence.tokens[-1],
            slot=slot,
            origin=layout.origin,
            # Who holds nothing of the prompt has no use for the rotation, which tells the prompt's length.
            rotation=layout.rotation if layout.public else 0,
            logprob=sampled.logprobs[0],
            finish=sequence.finish,
        )
        left = sequence.limit - sequence.prompt_length
        return Prefilled(request_id, (first,), max_tokens=left, public=prompt[: layout.public])

    def _prefill(self, sequence: Sequence, most: int) -> torch.Tensor:
        """Compute the prompt's next chunk; with the last, the logits of the answer's first token.

        Rows do not depend on the rest of the batch, so the engine would choose the same first token.
        """
        start, layout = sequence.computed, sequence.layout
        end = min(start + most, sequence.prompt_length)
        wanted = Wanted.LAST if end == sequence.prompt_length else Wanted.NONE
        blocks = sequence.blocks[: layout.blocks(end)]
        logits = self._runner.forward([Chunk(sequence.tokens[start:end], start, blocks, layout, wanted)])
        sequence.computed = end
        return logits

    def _has_blocks(self, sequence: Sequence) -> bool:
        """Whether the prompt has its blocks, lent and own: all at once, so that nobody waits half computed."""
        if sequence.blocks:
            return True
        layout, pool = sequence.layout, self._memory.pool
        lent = self._memory.recall(sequence.tokens, layout.public)
        need = layout.blocks(sequence.prompt_length) - len(lent.blocks)
        own = pool.allocate(need) if self._memory.make_room(need) else None
        if own is None:
            pool.release(lent.blocks)
            return False
        sequence.blocks, sequence.computed = lent.blocks + own, lent.computed
        return True

    def _expose(self, sequence: Sequence) -> int:
        layout, slot = sequence.layout, self._answerer.free_slot()
        assert slot is not None, "one was free when the prompt's turn came, and only this takes any"
        private = sequence.blocks[layout.blocks(layout.public) :]
        self._answerer.expose(slot, private, start=layout.public, end=layout.prompt, rotation=layout.rotation)
        del self._waiting[sequence.request_id]
        self._exposed[sequence.request_id] = (sequence, slot)
        return slot
