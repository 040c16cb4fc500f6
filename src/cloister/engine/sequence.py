"""One request on its way through the engine: its tokens, what of it is computed, and which blocks hold that.

A sequence knows nothing of text, other sequences or scheduling: its output is a function of its own tokens and
parameters alone. `check` says what a request must be like to become one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cloister.compute.layout import Layout, Remote
from cloister.engine.logits import Adjustments
from cloister.errors import InvalidRequest, PromptTooLong
from cloister.levels import PolicyName
from cloister.messages.generation import FinishReason, Partition, SamplingParams, Submit, TokenLogprob
from cloister.prefix.base import PrefixKey


@dataclass(slots=True, eq=False, repr=False)
class Sequence:
    """Prompt and output of one request. `computed` counts the leading positions whose keys and values are cached.

    `cached` says how many of them were found so when it first began; `lent` how many blocks it was lent, the first
    `lent_public` of them visible to everybody.
    """

    request_id: int
    tenant: str
    params: SamplingParams
    tokens: list[int]
    prompt_length: int
    limit: int
    arrival: int
    stop_tokens: frozenset[int]
    layout: Layout
    salt: str = ""
    policy: PolicyName = "none"
    key: PrefixKey | None = None
    cached: int | None = None
    shared: int = 0
    kept: int = 0
    """Pages that the prefix cache was given."""
    lent: int = 0
    lent_public: int = 0
    computed: int = 0
    charged: int = 0
    last_step: int = 0
    blocks: list[int] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_reported: bool = False
    adjustments: Adjustments | None = None
    finish: FinishReason | None = None

    @classmethod
    def of(cls, request: Submit, *, arrival: int, max_context: int, relative: bool = False) -> Sequence:
        """The sequence a request starts: nothing computed, nothing held.

        With a partition it is as if its first token had been sampled here, so all that follows (seeds, penalties,
        limits) is the same; it may have ended with that token.
        """
        length, layout = len(request.prompt), layout_of(request, relative)
        sequence = cls(
            request_id=request.request_id,
            tenant=request.tenant,
            params=request.params,
            tokens=list(request.prompt),
            prompt_length=length,
            limit=length + min(request.params.max_tokens, max_context - behind(layout) - request.answered),
            arrival=arrival,
            stop_tokens=frozenset(request.params.stop_tokens),
            layout=layout,
            salt=request.salt,
            policy=request.policy,
        )
        if request.partition is not None:
            sequence.append(request.partition.first)
        return sequence

    def __repr__(self) -> str:
        """Without the tokens: a log may show a sequence."""
        return f"<Sequence {self.request_id}: {self.computed} of {len(self.tokens)} computed>"

    @property
    def link(self) -> int | None:
        """To the vault that holds the private span, if one does."""
        return self.layout.remote.link if self.layout.remote else None

    @property
    def remaining(self) -> int:
        """Tokens not yet computed; 1 while decoding."""
        return len(self.tokens) - self.computed

    @property
    def outputs(self) -> int:
        """How many tokens were generated so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def may_grow(self) -> bool:
        """Whether another token may be generated: neither max_tokens nor the context is used up."""
        return len(self.tokens) < self.limit

    @property
    def owes_prompt_logprobs(self) -> bool:
        """Whether the forced pass over the prompt still lacks rows."""
        return self.params.prompt_logprobs is not None and len(self.prompt_logprobs) < self.prompt_length - 1

    def append(self, token: int) -> None:
        """Take a generated token; ends the sequence if it is the last."""
        self.tokens.append(token)
        if self.adjustments is not None:
            self.adjustments.note(token)
        if token in self.stop_tokens:
            self.finish = "stop"
        elif not self.may_grow:
            self.finish = "length"


def layout_of(request: Submit, relative: bool) -> Layout:
    """How the request's positions fall into segments; `relative`: the answer is rotated from 0 on."""
    length, partition = len(request.prompt), request.partition
    if partition is not None:
        remote = Remote(partition.link, partition.slot)
        return Layout(length, length, partition.origin, partition.rotation, remote)
    prompt = length - request.answered
    if relative:
        return Layout(prompt=prompt, public=request.public, rotation=prompt)
    return Layout(prompt=prompt, public=request.public, origin=prompt)


def behind(layout: Layout) -> int:
    """Tokens before the answer, as far as this process knows: origin and rotation may reach further than its own."""
    return max(layout.prompt, layout.origin + layout.rotation)


def check(request: Submit, *, vocabulary: int, max_context: int, relative: bool) -> None:
    """Raise InvalidRequest if this can never be served; whether there is room now is for the scheduler to say."""
    params = request.params
    if request.partition is not None:
        _check_partition(request, request.partition, vocabulary)
    elif not request.prompt:
        raise InvalidRequest("The prompt is empty.", param="prompt", hint="Send at least one token.")
    if request.prompt and (max(request.prompt) >= vocabulary or min(request.prompt) < 0):
        raise InvalidRequest(f"The prompt has token ids outside the vocabulary of {vocabulary}.", param="prompt")
    _check_spans(request)
    if params.logit_bias and max(params.logit_bias) >= vocabulary:
        raise InvalidRequest(f"logit_bias has ids outside the vocabulary of {vocabulary}.", param="logit_bias")
    before = behind(layout_of(request, relative)) + request.answered
    if before + (params.max_tokens > 0) > max_context:
        raise PromptTooLong(
            f"The prompt has {before} tokens; prompt and output together may have {max_context}.",
            param="prompt",
            hint="Shorten the prompt.",
        )


def _check_spans(request: Submit) -> None:
    """One public span, one private one, one answer, in this order: what one sequence's layout can express."""
    labels = [span.label for span in request.spans]
    if labels != [label for label in ("public", "private", "answer") if label in labels]:
        raise InvalidRequest("Spans come as public, private, answer, each at most once.", param="spans")
    if request.spans and sum(span.tokens for span in request.spans) != len(request.prompt):
        raise InvalidRequest("The spans do not cover the prompt.", param="spans")
    if request.answered and (request.partition is not None or "private" not in labels):
        raise InvalidRequest("A replayed answer needs a prompt before it.", param="spans")


def _check_partition(request: Submit, partition: Partition, vocabulary: int) -> None:
    if len(request.partitions) > 1:
        raise InvalidRequest("A request has one sequence here.", param="partitions")
    if partition.first >= vocabulary:
        raise InvalidRequest(f"The first token is outside the vocabulary of {vocabulary}.", param="partitions")
    if request.public not in (0, len(request.prompt)):
        raise InvalidRequest("With a partition the whole prompt given is public.", param="spans")
    for name in {"repetition_penalty", "prompt_logprobs"} & request.params.wished:
        raise InvalidRequest(
            f"{name} needs the whole prompt, which stays in its vault.", param=name, hint=f"Leave {name} out."
        )
