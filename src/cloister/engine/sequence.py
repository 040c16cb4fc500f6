"""One request on its way through the engine: its tokens, what of it is computed, and which blocks hold that.

A sequence knows nothing of text, of other sequences, or of when it is scheduled: what comes out of it is a function of
its own tokens and parameters alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cloister.compute.layout import Layout, Remote
from cloister.engine.penalties import Adjustments
from cloister.messages.generation import FinishReason, SamplingParams, Submit, TokenLogprob


@dataclass(slots=True, eq=False, repr=False)
class Sequence:
    """Prompt and output of one request. `computed` counts the leading positions whose keys and values are cached."""

    request_id: int
    tenant: str
    params: SamplingParams
    tokens: list[int]
    prompt_length: int
    limit: int
    arrival: int
    stop_tokens: frozenset[int]
    layout: Layout
    computed: int = 0
    charged: int = 0
    asked_rows: int = 0
    last_step: int = 0
    blocks: list[int] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_reported: bool = False
    adjustments: Adjustments | None = None
    finish: FinishReason | None = None

    @classmethod
    def of(cls, request: Submit, *, arrival: int, max_context: int, relative: bool = False) -> Sequence:
        """The sequence a request starts: nothing computed, nothing held.

        With a partition it stands where it would if its first token had been sampled here, so all that follows
        (seeds, penalties, limits) is the same; it may have ended with that token.
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
        )
        if request.partition is not None:
            sequence.append(request.partition.first)
        return sequence

    def __repr__(self) -> str:
        """Without the tokens: a sequence may be named in a log."""
        return f"<Sequence {self.request_id}: {self.computed} of {len(self.tokens)} computed>"

    @property
    def link(self) -> int | None:
        """The link to the vault that holds the private span, if one does."""
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
        """Take a generated token, and note whether it is the last."""
        self.tokens.append(token)
        if self.adjustments is not None:
            self.adjustments.note(token)
        if token in self.stop_tokens:
            self.finish = "stop"
        elif not self.may_grow:
            self.finish = "length"


def layout_of(request: Submit, relative: bool) -> Layout:
    """How the request's positions fall into segments; `relative` says whether the answer is rotated from 0 on."""
    length, partition = len(request.prompt), request.partition
    if partition is not None:
        remote = Remote(partition.link, partition.slot)
        return Layout(prompt=length, public=length, origin=partition.origin, rotation=partition.turn, remote=remote)
    prompt = length - request.answered
    if relative:
        return Layout(prompt=prompt, public=request.public, rotation=prompt)
    return Layout(prompt=prompt, public=request.public, origin=prompt)


def behind(layout: Layout) -> int:
    """Tokens before the answer, as far as this process knows: origin and rotation lead there, or say nothing."""
    return max(layout.prompt, layout.origin + layout.rotation)
