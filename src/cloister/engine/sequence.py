"""One request on its way through the engine: its tokens, what of it is computed, and which blocks hold that.

A sequence knows nothing of text, other sequences or scheduling: its output is a function of its own tokens and
parameters alone. `check` says what a request must be like to become one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cloister.compute.layout import Layout, Remote
from cloister.engine.logits import Adjustments
from cloister.engine.request import GenerationRequest
from cloister.errors import InvalidRequest, PromptTooLong
from cloister.levels import PolicyName
from cloister.messages.types import FinishReason, SamplingParams, TokenLogprob
from cloister.prefix.base import PrefixKey


class Group:
    """The sequences of a request that has several: they end together, with as many tokens each.

    One that has stopped goes on, and nobody reads what it says then, until all have stopped or none may grow: its end
    is seen by nobody who counts tokens, and all are one shape.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._members: list[Sequence] = []
        self._decided = False

    def join(self, member: Sequence) -> None:
        self._members.append(member)

    @property
    def finish(self) -> FinishReason | None:
        """How it ended, once all have: for each by itself, its tokens tell."""
        if any(member.finish is None for member in self._members):
            return None
        return "stop" if all(member.stopped for member in self._members) else "length"

    def note(self) -> None:
        """A member has grown."""
        members = self._members
        if len(members) < self._size:
            return
        if not self._decided:
            whole = next((member.outputs for member in members if not member.may_grow), None)
            if whole is None and all(member.stopped for member in members):
                whole = max(member.outputs for member in members)
            if whole is not None:
                self._decided = True
                for member in members:
                    member.limit = member.prompt_length + whole
        for member in members:
            if not member.may_grow:
                member.finish = "length"

    @property
    def ended(self) -> list[Sequence]:
        return [member for member in self._members if member.finish is not None]


@dataclass(slots=True, eq=False, repr=False)
class Sequence:
    """Prompt and output of one request, or one of several (`number`, in a `group`). `computed` counts the leading
    positions whose keys and values are cached.

    `cached` says how many of them were found so before its first token, `shared` how many of these in blocks that
    everybody finds; `lent` how many blocks it was lent, the first `lent_public` of them such. More may come: then it
    looks again, `looks` times.
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
    number: int = 0
    group: Group | None = None
    stopped: bool = False
    """Whether it has said a stop token."""
    salt: str = ""
    policy: PolicyName = "none"
    key: PrefixKey | None = None
    cached: int | None = None
    shared: int = 0
    kept: int = 0
    """Pages that the prefix cache was given."""
    lent: int = 0
    lent_public: int = 0
    looks: int = 0
    computed: int = 0
    charged: int = 0
    last_step: int = 0
    blocks: list[int] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_reported: bool = False
    adjustments: Adjustments | None = None
    finish: FinishReason | None = None

    @classmethod
    def of(
        cls,
        request: GenerationRequest,
        *,
        arrival: int,
        max_context: int,
        relative: bool = False,
        number: int = 0,
        group: Group | None = None,
    ) -> Sequence:
        """The sequence a request starts, or the so-manieth of several: nothing computed, nothing held.

        With a partition it is as if its first token had been sampled here, so all that follows (seeds, penalties,
        limits) is the same; it may have ended with that token.
        """
        length, layout = len(request.prompt), layout_of(request, relative, number)
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
            number=number,
            group=group,
            salt=request.salt,
            policy=request.policy,
        )
        if group is not None:
            group.join(sequence)
        if request.partitions:
            sequence.append(request.partitions[number].first)
        return sequence

    @classmethod
    def all_of(
        cls, request: GenerationRequest, *, arrival: int, max_context: int, relative: bool = False
    ) -> list[Sequence]:
        """One, or one for each partition."""
        count = max(1, len(request.partitions))
        group = Group(count) if count > 1 else None
        return [
            cls.of(request, arrival=arrival + at, max_context=max_context, relative=relative, number=at, group=group)
            for at in range(count)
        ]

    @property
    def id(self) -> tuple[int, int]:
        """Its request, and which of that request's sequences it is."""
        return self.request_id, self.number

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

    def forget(self) -> None:
        """It has ended: overwrite what it has in tensors. Its lists are Python's, which overwrites what it frees."""
        if self.adjustments is not None:
            self.adjustments.forget()
            self.adjustments = None

    def append(self, token: int) -> None:
        """Take a generated token; ends the sequence if it is the last."""
        self.tokens.append(token)
        if self.adjustments is not None:
            self.adjustments.note(token)
        self.stopped = self.stopped or token in self.stop_tokens
        if self.group is not None:
            self.group.note()
        elif self.stopped:
            self.finish = "stop"
        elif not self.may_grow:
            self.finish = "length"


def layout_of(request: GenerationRequest, relative: bool, number: int = 0) -> Layout:
    """How the positions of a sequence fall into segments; `relative`: the answer is rotated from 0 on."""
    length = len(request.prompt)
    if request.partitions:
        partition = request.partitions[number]
        remote = Remote(partition.link, partition.slot)
        return Layout(length, length, partition.origin, partition.rotation, remote)
    prompt = length - request.answered
    if relative:
        return Layout(prompt=prompt, public=request.public, rotation=prompt)
    return Layout(prompt=prompt, public=request.public, origin=prompt)


def behind(layout: Layout) -> int:
    """Tokens before the answer, as far as this process knows: origin and rotation may reach further than its own."""
    return max(layout.prompt, layout.origin + layout.rotation)


def check(request: GenerationRequest, *, vocabulary: int, max_context: int, relative: bool) -> None:
    """Raise InvalidRequest if this can never be served; whether there is room now is for the scheduler to say."""
    params = request.params
    if request.partitions:
        _check_partitions(request, vocabulary)
    elif not request.prompt:
        raise InvalidRequest("The prompt is empty.", param="prompt", hint="Send at least one token.")
    if request.prompt and (max(request.prompt) >= vocabulary or min(request.prompt) < 0):
        raise InvalidRequest(f"The prompt has token ids outside the vocabulary of {vocabulary}.", param="prompt")
    _check_spans(request)
    if params.logit_bias and max(params.logit_bias) >= vocabulary:
        raise InvalidRequest(f"logit_bias has ids outside the vocabulary of {vocabulary}.", param="logit_bias")
    numbers = range(max(1, len(request.partitions)))
    before = max(behind(layout_of(request, relative, number)) for number in numbers) + request.answered
    if before + (params.max_tokens > 0) > max_context:
        raise PromptTooLong(
            f"The prompt has {before} tokens; prompt and answer together may have {max_context}.",
            param="prompt",
            hint="Shorten the prompt.",
        )


def _check_spans(request: GenerationRequest) -> None:
    if request.public + request.answered > len(request.prompt):
        raise InvalidRequest("The prompt has fewer tokens than its spans.", param="prompt")
    if request.answered and (request.partitions or request.public + request.answered == len(request.prompt)):
        raise InvalidRequest("A replayed answer needs a prompt before it.", param="prompt")


def _check_partitions(request: GenerationRequest, vocabulary: int) -> None:
    if len({partition.link for partition in request.partitions}) > 1:
        raise InvalidRequest("A request's sequences are on one link.", param="partitions")
    if any(partition.first >= vocabulary for partition in request.partitions):
        raise InvalidRequest(f"The first token is outside the vocabulary of {vocabulary}.", param="partitions")
    if request.public not in (0, len(request.prompt)):
        raise InvalidRequest("With a partition the whole prompt given is public.", param="prompt")
    for name in {"repetition_penalty", "prompt_logprobs"} & request.params.requested:
        raise InvalidRequest(
            f"{name} needs the whole prompt, which stays in its vault.", param=name, hint=f"Leave {name} out."
        )
