"""The engine: requests in, tokens out, one step at a time.

It ties scheduler, runner and sampler together. It knows tenants as opaque strings and tokens as numbers; it knows
nothing of HTTP, text, keys or levels of protection, and it is called from one thread.
"""

from __future__ import annotations

import logging

from cloister.config import EngineSettings
from cloister.engine.batch import Work
from cloister.engine.blocks import BlockPool
from cloister.engine.prefix import NoReuse, PrefixCache
from cloister.engine.runner import Runner, Wanted
from cloister.engine.sampler import Forced, Sampled, Sampler
from cloister.engine.scheduler import Scheduler
from cloister.engine.sequence import Sequence
from cloister.errors import CloisterError, InvalidRequest, PromptTooLong, QueueFull, ServiceUnavailable
from cloister.hardening import where_raised
from cloister.messages.generation import Accepted, Failed, Stats, Submit, TokenLogprob, Tokens

log = logging.getLogger(__name__)


class Engine:
    """Serves many sequences at once over one runner. Every answer is a message for the front."""

    def __init__(self, runner: Runner, settings: EngineSettings, prefix: PrefixCache | None = None) -> None:
        self._runner = runner
        self._pool = BlockPool(runner.num_blocks)
        prefix = prefix or NoReuse()
        prefix.attach(self._pool, runner.block_tokens)
        self._scheduler = Scheduler(settings, self._pool, runner.block_tokens, prefix)
        self._sampler = Sampler(runner.vocabulary, runner.draw_rows)
        self._sequences: dict[int, Sequence] = {}
        self._arrivals = 0
        self._steps = self._prompt_tokens = self._output_tokens = 0
        allowed = min(settings.max_context or runner.max_context, runner.max_context)
        self.max_context = min(allowed, runner.num_blocks * runner.block_tokens)
        """Tokens of prompt and output together at most: what the model, the settings and the whole pool allow."""

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._sequences)

    def submit(self, request: Submit) -> Accepted | Failed:
        """Queue a request, or say at once why not."""
        try:
            self._check(request)
            sequence = Sequence.of(request, arrival=self._arrivals, max_context=self.max_context)
            self._scheduler.add(sequence)
        except CloisterError as error:
            return _failed(request.request_id, error)
        self._arrivals += 1
        self._sequences[request.request_id] = sequence
        return Accepted(request.request_id)

    def cancel(self, request_id: int) -> Tokens | None:
        """End a request in whatever state it is, at once; the last message of it, or None if there is no such."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is None:
            return None
        self._scheduler.remove(sequence, keep_prefix=False)
        sequence.finish = "cancelled"
        return Tokens(request_id, finish="cancelled")

    def step(self) -> list[Tokens | Failed]:
        """Compute once for everyone whose turn it is; the messages that come of it."""
        batch = self._scheduler.schedule()
        if not batch:
            return self._fail_stuck()
        self._steps += 1
        try:
            sampled = self._compute(batch)
        except Exception as error:
            log.error("A step failed: %s.", where_raised(error))
            return [self._fail(work.sequence, error) for work in batch]
        return self._apply(batch, sampled)

    def stats(self) -> Stats:
        """Totals over all tenants. Prompt tokens count as served whether or not they were found cached."""
        return Stats(
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            blocks_total=self._pool.total,
            blocks_free=self._pool.free,
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            output_tokens=self._output_tokens,
            preemptions=self._scheduler.preemptions,
        )

    def _check(self, request: Submit) -> None:
        params, vocabulary, length = request.params, self._runner.vocabulary, len(request.prompt)
        if request.request_id in self._sequences:
            raise InvalidRequest("A request of this id is under way.", param="request_id")
        if not request.prompt:
            raise InvalidRequest("The prompt is empty.", param="prompt", hint="Send at least one token.")
        if max(request.prompt) >= vocabulary or min(request.prompt) < 0:
            raise InvalidRequest(f"The prompt has token ids outside the vocabulary of {vocabulary}.", param="prompt")
        if params.logit_bias and max(params.logit_bias) >= vocabulary:
            raise InvalidRequest(f"logit_bias has ids outside the vocabulary of {vocabulary}.", param="logit_bias")
        if length + (params.max_tokens > 0) > self.max_context:
            raise PromptTooLong(
                f"The prompt has {length} tokens; prompt and output together may have {self.max_context}.",
                param="prompt",
                hint="Shorten the prompt.",
            )

    def _compute(self, batch: list[Work]) -> Sampled:
        logits = self._runner.forward([work.piece for work in batch])
        sequences: list[Sequence] = []
        at: list[int] = []
        forced: list[Forced] = []
        row = 0
        for work in batch:
            if work.piece.wanted is Wanted.ALL:
                sequence, start = work.sequence, work.piece.start
                targets = sequence.tokens[start + 1 : min(work.end + 1, sequence.prompt_length)]
                forced.append(Forced(row, targets, sequence.params.prompt_logprobs or 0))
            row += work.rows
            if work.samples:
                sequences.append(work.sequence)
                at.append(row - 1)
        if logits.shape[0] != row:
            raise ServiceUnavailable(f"The runner gave {logits.shape[0]} rows of logits where {row} were wanted.")
        if row == 0:
            return Sampled([], [], [])
        return self._sampler.sample(logits, sequences, at, forced)

    def _apply(self, batch: list[Work], sampled: Sampled) -> list[Tokens | Failed]:
        messages: list[Tokens | Failed] = []
        chosen = iter(zip(sampled.tokens, sampled.logprobs, strict=True))
        forced = iter(sampled.forced)
        for work in batch:
            sequence = work.sequence
            self._scheduler.computed(work)
            if work.piece.wanted is Wanted.ALL:
                sequence.prompt_logprobs += next(forced)
            if work.samples:
                token, logprob = next(chosen)
                sequence.append(token)
                self._output_tokens += 1
                messages.append(self._message(sequence, token, logprob))
            elif work.end == sequence.limit:
                sequence.finish = "length"
                messages.append(self._message(sequence))
            if sequence.finish is not None:
                self._close(sequence)
        return messages

    def _message(self, sequence: Sequence, token: int | None = None, logprob: TokenLogprob | None = None) -> Tokens:
        prompt_logprobs = None
        if not sequence.prompt_reported:
            sequence.prompt_reported = True
            self._prompt_tokens += sequence.prompt_length
            if sequence.params.prompt_logprobs is not None:
                prompt_logprobs = tuple(sequence.prompt_logprobs)
        return Tokens(
            request_id=sequence.request_id,
            tokens=() if token is None else (token,),
            logprobs=None if logprob is None else (logprob,),
            prompt_logprobs=prompt_logprobs,
            finish=sequence.finish,
        )

    def _close(self, sequence: Sequence) -> None:
        del self._sequences[sequence.request_id]
        self._scheduler.remove(sequence, keep_prefix=True)

    def _fail(self, sequence: Sequence, error: Exception) -> Failed:
        del self._sequences[sequence.request_id]
        self._scheduler.remove(sequence, keep_prefix=False)
        if not isinstance(error, CloisterError):
            error = CloisterError(f"The computation failed ({type(error).__name__}).", hint="Try again.")
        return _failed(sequence.request_id, error)

    def _fail_stuck(self) -> list[Tokens | Failed]:
        """Nothing could be scheduled though nothing runs: only a prefix cache that keeps blocks can cause this."""
        if self._scheduler.running or not self._sequences:
            return []
        error = ServiceUnavailable("The KV cache has no room though nothing runs.", hint="Try again.")
        return [self._fail(next(iter(self._sequences.values())), error)]


def _failed(request_id: int, error: CloisterError) -> Failed:
    retry_after = error.retry_after if isinstance(error, QueueFull) else 0
    return Failed(request_id, error.code, str(error), retry_after)
