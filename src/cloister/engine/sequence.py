"""One answer on its way through the engine: tokens, what is computed, blocks, output. It handles no text."""

from dataclasses import dataclass, field

from cloister.compute.layout import Layout, Remote
from cloister.engine.base import EngineRequest
from cloister.engine.logits import Adjustments, adjusts
from cloister.errors import InvalidRequest, PromptTooLong
from cloister.fairness import payer_of
from cloister.levels import PolicyName
from cloister.messages.types import FinishReason, SamplingParams, TokenLogprob
from cloister.prefix.base import PrefixKey


class Group:
    """A request's sequences. They end together with equally many tokens: a stopped one goes on, unused, until all have
    stopped or one may not grow, so that a count of tokens does not show where it stopped."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._members: list[Sequence] = []
        self._decided = False

    def join(self, member: "Sequence") -> None:
        self._members.append(member)

    @property
    def finish(self) -> FinishReason | None:
        if any(member.output.finish is None for member in self._members):
            return None
        return "stop" if all(member.output.stopped for member in self._members) else "length"

    def note(self) -> None:
        members = self._members
        if len(members) < self._size:
            return
        if not self._decided:
            whole = next((member.generated for member in members if not member.may_grow), None)
            if whole is None and all(member.output.stopped for member in members):
                whole = max(member.generated for member in members)
            if whole is not None:
                self._decided = True
                for member in members:
                    member.limit = member.prompt_length + whole
        for member in members:
            if not member.may_grow:
                member.output.finish = "length"

    @property
    def ended(self) -> "list[Sequence]":
        return [member for member in self._members if member.output.finish is not None]


@dataclass(slots=True)
class HeldBlocks:
    """The prefix cache lent the first `lent` of all blocks; all tenants see the first `public`."""

    all: list[int] = field(default_factory=list)
    lent: int = 0
    public: int = 0


@dataclass(slots=True)
class PrefixUse:
    salt: str
    policy: PolicyName
    key: PrefixKey | None = None
    found: int | None = None  # tokens before its first output; None until the first look-up
    shown: int = 0  # of them, those that usage reports
    found_shared: int = 0  # of those, in blocks that all tenants see
    kept: int = 0


@dataclass(slots=True)
class Output:
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_reported: bool = False
    adjustments: Adjustments | None = None
    vector: bytes = b""
    stopped: bool = False  # a stop token was sampled
    finish: FinishReason | None = None


@dataclass(slots=True, eq=False, repr=False)
class Sequence:
    """`computed` counts the leading positions whose keys and values are cached. The scheduler charges and steps."""

    request_id: int
    number: int
    tenant: str
    params: SamplingParams
    arrival: int
    layout: Layout
    prompt_length: int
    limit: int
    tokens: list[int]
    prefix: PrefixUse
    group: Group | None = None
    computed: int = 0
    charged: int = 0
    last_step: int = 0
    blocks: HeldBlocks = field(default_factory=HeldBlocks)
    output: Output = field(default_factory=Output)

    @property
    def payer(self) -> str:
        return payer_of(self.tenant)

    @classmethod
    def of(
        cls,
        request: EngineRequest,
        *,
        arrival: int,
        max_context: int,
        relative: bool = False,
        number: int = 0,
        group: Group | None = None,
    ) -> "Sequence":
        """With a partition it is as if its first token had been sampled here; it may have ended with that token."""
        length, layout = len(request.prompt), layout_of(request, relative, number)
        sequence = cls(
            request_id=request.request_id,
            number=number,
            tenant=request.tenant,
            params=request.params,
            arrival=arrival,
            layout=layout,
            prompt_length=length,
            limit=length + min(request.params.max_tokens, max_context - behind(layout) - request.answered),
            tokens=list(request.prompt),
            prefix=PrefixUse(request.salt, "none" if request.params.embed else request.policy),
            group=group,
        )
        if group is not None:
            group.join(sequence)
        if request.partitions:
            made = request.made[number] if request.made else ()
            for token in (request.partitions[number].first, *made):
                sequence.append(token)
        return sequence

    @classmethod
    def all_of(
        cls, request: EngineRequest, *, arrival: int, max_context: int, relative: bool = False
    ) -> "list[Sequence]":
        count = max(1, len(request.partitions))
        group = Group(count) if count > 1 else None
        return [
            cls.of(request, arrival=arrival + at, max_context=max_context, relative=relative, number=at, group=group)
            for at in range(count)
        ]

    @property
    def id(self) -> tuple[int, int]:
        return self.request_id, self.number

    @property
    def link(self) -> int | None:
        return self.layout.remote.link if self.layout.remote else None

    @property
    def remaining(self) -> int:
        """1 while decoding."""
        return len(self.tokens) - self.computed

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def may_grow(self) -> bool:
        return len(self.tokens) < self.limit

    @property
    def room_for_drafts(self) -> int:
        """0 if a guess's row cannot be sampled before the one ahead of it, or asks a vault: it answers each once."""
        if self.remaining != 1 or not self.generated or self.group is not None:
            return 0
        if self.layout.remote is not None or adjusts(self.params):
            return 0
        return self.limit - len(self.tokens) - 1

    @property
    def owes_prompt_logprobs(self) -> bool:
        scored = len(self.output.prompt_logprobs)
        return self.params.prompt_logprobs is not None and scored < self.prompt_length - 1

    def forget(self) -> None:
        """Overwrite its tensors. Python's allocator overwrites its lists."""
        if self.output.adjustments is not None:
            self.output.adjustments.forget()
            self.output.adjustments = None

    def append(self, token: int) -> None:
        output = self.output
        self.tokens.append(token)
        if output.adjustments is not None:
            output.adjustments.note(token)
        complete = output.adjustments is not None and output.adjustments.complete
        output.stopped = output.stopped or complete or token in self.params.stop_tokens
        if self.group is not None:
            self.group.note()
        elif output.stopped:
            output.finish = "stop"
        elif not self.may_grow:
            output.finish = "length"


def layout_of(request: EngineRequest, relative: bool, number: int = 0) -> Layout:
    """`relative`: the answer is rotated from 0 on."""
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
    """Tokens before the answer. Origin and rotation may include a prompt that only the vault has."""
    return max(layout.prompt, layout.origin + layout.rotation)


def check(request: EngineRequest, *, vocabulary: int, max_context: int, relative: bool) -> None:
    """Raise InvalidRequest if this can never be served. Whether there is room now is the scheduler's decision."""
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


def _check_spans(request: EngineRequest) -> None:
    if request.public + request.answered > len(request.prompt):
        raise InvalidRequest("The prompt has fewer tokens than its spans.", param="prompt")
    if request.answered and (request.partitions or request.public + request.answered == len(request.prompt)):
        raise InvalidRequest("A replayed answer needs a prompt before it.", param="prompt")


def _check_partitions(request: EngineRequest, vocabulary: int) -> None:
    if len({partition.link for partition in request.partitions}) > 1:
        raise InvalidRequest("A request's sequences are on one link.", param="partitions")
    given = [partition.first for partition in request.partitions] + [one for made in request.made for one in made]
    if max(given) >= vocabulary or min(given) < 0:
        raise InvalidRequest(f"A token is outside the vocabulary of {vocabulary}.", param="partitions")
    if request.made and len(request.made) != len(request.partitions):
        raise InvalidRequest("What is made is of each sequence.", param="partitions")
    if request.public not in (0, len(request.prompt)):
        raise InvalidRequest("With a partition the whole prompt given is public.", param="prompt")
    for name in {"repetition_penalty", "prompt_logprobs"} & request.params.requested:
        raise InvalidRequest(
            f"{name} needs the whole prompt, which stays in its vault.", param=name, hint=f"Leave {name} out."
        )
