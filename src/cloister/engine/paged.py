"""The engine over a paged KV cache. It ties scheduler, runner, sampler and prefix cache together."""

import logging
from collections.abc import Callable, Container, Iterable
from collections.abc import Sequence as Rows
from contextlib import suppress
from time import perf_counter
from typing import get_args

import torch

from cloister.compute.base import LinkAsker
from cloister.compute.layout import Wanted
from cloister.config import EngineSettings
from cloister.engine.base import Engine, EngineRequest
from cloister.engine.reuse import Answers
from cloister.engine.runner import Runner
from cloister.engine.sampler import Forced, Sampled, Sampler
from cloister.engine.scheduler import Scheduler, Work
from cloister.engine.sequence import Sequence, check
from cloister.engine.vectors import unit_vectors
from cloister.errors import CloisterError, InvalidRequest, ProtocolError, ServiceUnavailable, VaultLost, where_raised
from cloister.fairness import Pace, ServiceMeter
from cloister.grammar.refusal import too_large
from cloister.messages.generation import Accepted, Failed, Stats, Tokens
from cloister.messages.lifecycle import failed
from cloister.messages.types import Phase, TokenLogprob
from cloister.prefix.base import BlockPool, PrefixCache

log = logging.getLogger(__name__)

SCORES_AT_ONCE = 2048  # in one message: with twenty alternatives each they fit a frame


class PagedEngine(Engine):
    def __init__(
        self,
        runner: Runner,
        settings: EngineSettings,
        prefix: PrefixCache | None = None,
        pace: Pace | None = None,
        drafts: int = 0,
    ) -> None:
        """`drafts`: tokens guessed ahead for a sequence that decodes alone."""
        self._runner = runner
        self._pool = BlockPool(runner.num_blocks, runner.wipe)
        self._asker = runner.asker
        self._prefix = PrefixCache() if prefix is None else prefix
        self._prefix.attach(self._pool, runner.block_tokens)
        link_rows = self._asker.capacity if self._asker else 0
        self._pace = pace or Pace(settings.chunk_tokens)
        held = self._pool, runner.block_tokens, self._prefix
        self._scheduler = Scheduler(settings, *held, link_rows, self._pace, drafts)
        self._sampler = Sampler(runner.vocabulary, runner.draw_rows, runner.mask_row)
        self._sequences: dict[int, list[Sequence]] = {}  # the sequences of each request that have not ended
        self._over: dict[int, Tokens] = {}
        self._answers = Answers(self._pool, self._prefix)
        self._links: dict[int, str] = {}
        self._arrivals = 0
        self._steps = self._prompt_tokens = self._output_tokens = 0
        self._step_seconds = 0.0
        self._step_failed = False
        allowed = min(settings.max_context or runner.max_context, runner.max_context)
        self.max_context = min(allowed, _most_positions(runner.num_blocks, runner.block_tokens))

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._sequences or request_id in self._over

    @property
    def meter(self) -> ServiceMeter:
        return self._scheduler.meter

    @property
    def has_work(self) -> bool:
        return bool(self._sequences or self._over or self._answers)

    @property
    def only_spare(self) -> bool:
        return not (self._sequences or self._over)

    def submit(self, request: EngineRequest) -> Accepted | Failed:
        entered: list[Sequence] = []
        try:
            self._check(request)
            self._answers.make_way(request.tenant, request.prompt)
            relative = self._runner.relative
            sequences = Sequence.all_of(
                request, arrival=self._arrivals, max_context=self.max_context, relative=relative
            )
            for sequence in sequences:
                if sequence.output.finish is None:
                    self._scheduler.add(sequence)
                    entered.append(sequence)
        except CloisterError as error:
            for sequence in entered:
                self._scheduler.remove(sequence)
            return failed(request.request_id, error)
        self._arrivals += len(sequences)
        if entered:
            self._sequences[request.request_id] = entered
        else:  # the vault's first token was the last
            self._over[request.request_id] = self._messages(sequences[0])[-1]
        return Accepted(request.request_id)

    def cancel(self, request_id: int) -> Tokens | None:
        if sequences := self._sequences.pop(request_id, None):
            for sequence in sequences:
                self._answers.take(sequence)
                self._scheduler.remove(sequence)
                sequence.output.finish = "cancelled"
        elif self._over.pop(request_id, None) is None:
            return None
        return Tokens(request_id, finish="cancelled")

    @property
    def remaining(self) -> int:
        return sum(sequence.remaining for sequence in self._all) + len(self._scheduler.drafts)

    def step(self, most: int | None = None) -> list[Tokens | Failed]:
        begun = perf_counter()
        try:
            return self._step(most)
        finally:
            self._step_seconds += perf_counter() - begun

    def _step(self, most: int | None) -> list[Tokens | Failed]:
        messages: list[Tokens | Failed] = list(self._over.values())
        self._over.clear()
        batch = self._scheduler.schedule(most)
        if not batch:
            self._keep_answer(most)
            return messages + self._fail_stuck()
        self._steps += 1
        begun = perf_counter()
        try:
            generating = self._embed(batch)
            logits = self._runner.forward([work.chunk for work in generating]) if generating else torch.empty(0, 0)
            broken = self._asker.broken() if self._asker and generating else {}
            sampled = self._sample(generating, logits, broken)
            self._pace.note(sum(len(work.chunk.tokens) for work in batch), perf_counter() - begun)
        except Exception as error:
            log.error("A step failed: %s.", where_raised(error))
            self._step_failed = True
            return [*messages, *self._fail([work.sequence for work in batch], error)]
        messages += self._apply([work for work in batch if work.sequence.link not in broken], sampled)
        for link, reason in broken.items():
            if link in self._links:
                self._links[link] = reason
            messages += self._fail_all_on(link, VaultLost.because(reason))
        return messages

    def _keep_answer(self, most: int | None) -> None:
        if self._sequences or (chunk := self._answers.next(self._scheduler.spare(most))) is None:
            return
        self._steps += 1
        begun = perf_counter()
        try:
            self._runner.forward([chunk])
            self._pace.note(len(chunk.tokens), perf_counter() - begun)
            self._answers.computed(chunk)
        except Exception as error:
            log.error("A step failed: %s.", where_raised(error))
            self._step_failed = True
            self._answers.forget()

    def take_failure(self) -> bool:
        failed, self._step_failed = self._step_failed, False
        return failed

    def attach_link(self, link: int, question: int, answer: int) -> None:
        self._attach(link, lambda asker: asker.attach(link, question, answer))

    def export_links(self) -> list[int]:
        return self._asker.export() if self._asker else []

    def attach_exported_link(self, link: int, slot: int) -> None:
        self._attach(link, lambda asker: asker.attach_slot(link, slot))

    def _attach(self, link: int, attach: Callable[[LinkAsker], None]) -> None:
        if link in self._links:
            raise ProtocolError("A link of this number is attached.")
        self._links[link] = "link_malformed"  # until mapped: the vault writes to the link, so its content may be bad
        if self._asker is not None:
            with suppress(CloisterError, OSError):
                attach(self._asker)
                self._links[link] = ""

    def detach_link(self, link: int) -> list[Failed]:
        if self._links.pop(link, None) is None:
            return []
        failed = self._fail_all_on(link, VaultLost.because("vault_lost"))
        if self._asker is not None:
            self._asker.detach(link)
        return failed

    def label(self, request_id: int, public_tokens: int, registered: int = 0) -> None:
        self._prefix.label(request_id, public_tokens, registered)

    def forget(self, tenant: str) -> None:
        for sequence in self._all:
            if sequence.tenant == tenant:
                sequence.prefix.policy, sequence.prefix.key = "none", None
        self._answers.forget(tenant)
        self._prefix.forget(tenant)

    def stats(self) -> Stats:
        """Cached prompt tokens count as served, and blocks that only the prefix cache holds count as free."""
        measured = {**self._runner.seconds, "step": self._step_seconds}
        phases: tuple[Phase, ...] = get_args(Phase)
        return Stats(
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            blocks_total=self._pool.total,
            blocks_free=self._pool.total - self._scheduler.blocks_held,
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            output_tokens=self._output_tokens,
            preemptions=self._scheduler.preemptions,
            reuse=dict(self._scheduler.reuse.counts),
            evictions=self._prefix.evictions,
            seconds={phase: measured[phase] for phase in phases if phase in measured},
        )

    def _check(self, request: EngineRequest) -> None:
        if request.request_id in self:
            raise InvalidRequest("A request of this id is under way.", param="request_id")
        for partition in request.partitions:
            if reason := self._links.get(partition.link, "vault_lost"):
                raise VaultLost.because(reason)
        runner, params = self._runner, request.params
        answers = params.max_tokens or params.prompt_logprobs is not None or request.partitions
        if params.embed and (answers or not runner.width):
            raise InvalidRequest("An embedding is of a whole prompt and has no answer.", param="input")
        check(request, vocabulary=runner.vocabulary, max_context=self.max_context, relative=runner.relative)

    def _embed(self, batch: list[Work]) -> list[Work]:
        """Compute the parts of embeddings together, in a pass without logits; returns the others."""
        embedded = [work for work in batch if work.sequence.params.embed]
        if embedded:
            vectors = unit_vectors(self._runner.states([work.chunk for work in embedded]))
            whole = [work.sequence for work in embedded if work.rows]
            for sequence, vector in zip(whole, vectors, strict=True):
                sequence.output.vector = vector
        return [work for work in batch if not work.sequence.params.embed]

    def _sample(self, batch: list[Work], logits: torch.Tensor, broken: Container[int | None]) -> Sampled:
        sequences: list[Sequence] = []
        at: list[int] = []
        forced: list[Forced] = []
        ahead: list[int] = []
        row = 0
        for work in batch:
            if work.chunk.wanted is Wanted.ALL and not work.drafts:
                sequence, start = work.sequence, work.chunk.start
                targets = sequence.tokens[start + 1 : min(work.end + 1, sequence.prompt_length)]
                forced.append(Forced(row, targets, sequence.params.prompt_logprobs or 0))
            row += work.rows
            if work.samples and work.sequence.link not in broken:
                rows = 1 + len(work.drafts)
                sequences += [work.sequence] * rows
                at += range(row - rows, row)
                ahead += range(rows)
        if logits.shape[0] != row:
            raise ServiceUnavailable(f"The runner gave {logits.shape[0]} rows of logits where {row} were wanted.")
        if not sequences and not forced:
            return Sampled([], [], [])
        return self._sampler.sample(logits, sequences, at, forced, ahead)

    def _apply(self, batch: list[Work], sampled: Sampled) -> list[Tokens | Failed]:
        messages: list[Tokens | Failed] = []
        chosen = iter(zip(sampled.tokens, sampled.logprobs, strict=True))
        forced = iter(sampled.forced)
        for work in batch:
            sequence = work.sequence
            if sequence.output.finish is not None:  # its group ended earlier in this step
                next(chosen)
                continue
            self._scheduler.computed(work)
            if work.chunk.wanted is Wanted.ALL and not work.drafts:
                sequence.output.prompt_logprobs += next(forced)
            if work.drafts:
                messages += self._take_drafted(work, [next(chosen) for _ in range(work.rows)])
            elif work.samples:
                token, logprob = next(chosen)
                sequence.append(token)
                if sequence.output.adjustments is not None and sequence.output.adjustments.failed:
                    messages += self._fail([sequence], too_large())
                    continue
                self._output_tokens += 1
                messages += self._messages(sequence, token, logprob)
            elif work.end == sequence.limit and sequence.params.embed and not sequence.output.vector:
                error = InvalidRequest("The model's state after this input has no direction.", param="input")
                messages += self._fail([sequence], error)
            elif work.end == sequence.limit:
                sequence.output.finish = "length"
                messages += self._messages(sequence)
            for ended in sequence.group.ended if sequence.group is not None else (sequence,):
                if ended.output.finish is not None:
                    self._close(ended)
        return messages

    def _take_drafted(self, work: Work, chosen: Rows[tuple[int, TokenLogprob | None]]) -> list[Tokens]:
        """What the first row chose; of each further row only if the guess before it came true."""
        sequence, true, messages = work.sequence, -1, list[Tokens]()
        for (token, logprob), guess in zip(chosen, (*work.drafts, None), strict=True):
            true += 1
            sequence.append(token)
            self._output_tokens += 1
            messages += self._messages(sequence, token, logprob)
            if token != guess or sequence.output.finish is not None:
                break
        self._scheduler.kept(work, true)
        return messages

    def _messages(
        self, sequence: Sequence, token: int | None = None, logprob: TokenLogprob | None = None
    ) -> list[Tokens]:
        scores: list[tuple[TokenLogprob, ...] | None] = [None]
        cached = shared = 0
        output = sequence.output
        if not output.prompt_reported:
            output.prompt_reported = True
            if not sequence.number:
                cached, shared = sequence.prefix.shown, sequence.prefix.found_shared
            self._prompt_tokens += sequence.prompt_length
            if sequence.params.prompt_logprobs is not None:
                scored = tuple(output.prompt_logprobs)
                starts = range(0, max(len(scored), 1), SCORES_AT_ONCE)
                scores = [scored[start : start + SCORES_AT_ONCE] for start in starts]
        last = Tokens(
            request_id=sequence.request_id,
            tokens=() if token is None else (token,),
            logprobs=None if logprob is None else (logprob,),
            prompt_logprobs=scores[-1],
            finish=output.finish if sequence.group is None else sequence.group.finish,
            sequence=sequence.number,
            cached=cached,
            shared=shared,
            vector=output.vector,
        )
        return [*(Tokens(sequence.request_id, prompt_logprobs=piece) for piece in scores[:-1]), last]

    @property
    def _all(self) -> list[Sequence]:
        return [sequence for sequences in self._sequences.values() for sequence in sequences]

    def _close(self, sequence: Sequence) -> None:
        sequences = self._sequences.get(sequence.request_id, [])
        if sequence not in sequences:
            return
        sequences.remove(sequence)
        if not sequences:
            del self._sequences[sequence.request_id]
        self._answers.take(sequence)
        self._scheduler.remove(sequence)

    def _fail(self, sequences: Iterable[Sequence], error: Exception) -> list[Failed]:
        if not isinstance(error, CloisterError):
            error = CloisterError(f"The computation failed ({type(error).__name__}).", hint="Try again.")
        failures: list[Failed] = []
        for request_id in dict.fromkeys(sequence.request_id for sequence in sequences):
            for sequence in self._sequences.pop(request_id):
                self._scheduler.remove(sequence)
            failures.append(failed(request_id, error))
        return failures

    def _fail_all_on(self, link: int, error: VaultLost) -> list[Failed]:
        return self._fail([sequence for sequence in self._all if sequence.link == link], error)

    def _fail_stuck(self) -> list[Tokens | Failed]:
        """No sequence runs and none can be scheduled: the prefix cache did not give up its blocks."""
        if self._scheduler.running or not self._sequences:
            return []
        error = ServiceUnavailable("The KV cache has no room though nothing runs.", hint="Try again.")
        return [*self._fail(next(iter(self._sequences.values())), error)]


def _most_positions(blocks: int, size: int) -> int:
    """The longest sequence that fits under every layout: each of three segments may end in a block of one position."""
    return max(blocks, (blocks - 2) * size + 2)
