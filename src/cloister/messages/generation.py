"""What a frontend process and the service say to each other about generating tokens.

Tokens only: text, templates and stop strings stay in the frontend.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from cloister.levels import OPEN, LevelName, PolicyName, ReadLevel

VERSION = 5
MAX_SEQUENCES = 256
MAX_SPANS = 1024

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
RequestId = Annotated[int, Meta(ge=0, le=2**63 - 1)]
SequenceNumber = Annotated[int, Meta(ge=0, lt=MAX_SEQUENCES)]
Salt = Annotated[str, Meta(max_length=256)]
SpanLabel = Literal["public", "private", "answer"]
FinishReason = Literal["stop", "length", "cancelled"]
Revealed = Literal["token", "logits"]
Phase = Literal["query", "key_value", "output_attention", "waiting", "merge", "rest", "step"]


class SamplingParams(Struct, frozen=True, forbid_unknown_fields=True):
    """How to choose each token. temperature 0 is greedy; top_k 0 and top_p 1 switch those filters off.

    `logprobs` is how many alternatives to report beside the chosen token (0: the chosen one only; None: no report).
    `prompt_logprobs` likewise for the prompt's own tokens: a forced pass over given tokens.
    `seed` fixes the random stream: the draw for output token t depends on (seed, t) and on nothing else.
    `mpc_reveal`, on shares alone, says what of each step is opened to whoever holds the prompt, and to nobody else.
    """

    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 16
    temperature: Annotated[float, Meta(ge=0, le=100)] = 1.0
    top_k: Annotated[int, Meta(ge=0)] = 0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] = 1.0
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] = 0.0
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    logit_bias: Annotated[dict[TokenId, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=1024)] = field(
        default_factory=dict
    )
    stop_tokens: Annotated[tuple[TokenId, ...], Meta(max_length=256)] = ()
    mpc_reveal: Revealed = "token"

    @property
    def requested(self) -> set[str]:
        """The fields that ask for more than the likeliest tokens or a plain draw; levels may refuse some of them."""
        wishes = {
            "max_tokens": self.max_tokens == 0,
            "top_p": self.top_p < 1,
            "top_k": self.top_k > 0,
            "min_p": self.min_p > 0,
            "repetition_penalty": self.repetition_penalty != 1,
            "logprobs": self.logprobs is not None,
            "prompt_logprobs": self.prompt_logprobs is not None,
            "mpc_reveal": self.mpc_reveal != "token",
        }
        return {name for name, requested in wishes.items() if requested}


class OfRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Shows which request a message is of, never what it says: a message may be printed by a failing line of code."""

    request_id: RequestId

    def __repr__(self) -> str:
        return f"{type(self).__name__}(request_id={self.request_id})"


class Span(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """So many consecutive tokens under one label.

    public: whoever decodes may hold them. private: only the prompt's holder may. answer: tokens of an answer, given
    again, that are computed exactly as decoding computed them.
    """

    label: SpanLabel
    tokens: Annotated[int, Meta(ge=1, le=1_048_576)]


def label_spans(length: int, *, public: int = 0, answer: int = 0) -> tuple[Span, ...]:
    """The spans of a prompt that begins with public tokens and ends with an answer's; what is between is private."""
    parts: tuple[tuple[SpanLabel, int], ...] = (
        ("public", public),
        ("private", length - public - answer),
        ("answer", answer),
    )
    return tuple(Span(label, tokens) for label, tokens in parts if tokens)


class Partition(Struct, frozen=True, forbid_unknown_fields=True):
    """A sequence whose prompt's private span is in a vault: on which link, in which slot, and where the answer stands.

    `first` is the answer's first token, which the vault chose. `origin` and `rotation`: see compute.layout.Layout.
    """

    link: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    slot: Annotated[int, Meta(ge=0, le=1023)]
    first: TokenId
    origin: Annotated[int, Meta(ge=0)] = 0
    rotation: Annotated[int, Meta(ge=0)] = 0


class Submit(OfRequest, frozen=True, tag="submit"):
    """Frontend → service: generate from these tokens. `tenant` is for fairness and for who finds cached blocks.

    `salt` narrows that: only requests of the same salt find each other's blocks. `level` is a frontend's word to the
    controller, `policy` the controller's to the service: what is found, and what becomes visible to whom.

    `spans` labels the prompt's tokens, in order and without gaps; none means that all are private. Each label is a
    segment of its own. A replay of an answer (with `prompt_logprobs`) computes exactly what decoding it computed.
    `partitions` has an entry for each sequence whose private span is in a vault; the prompt then holds its public
    tokens alone, and may be empty. Each of them is decoded as a sequence of its own (Tokens.sequence).
    `background`: computed only while nobody else waits or runs; the controller's word alone. `examined`: a frontend's
    word that an Examine follows, whose outcome the controller waits for.
    """

    tenant: Name
    prompt: Annotated[tuple[TokenId, ...], Meta(max_length=1_048_576)]
    params: SamplingParams
    spans: Annotated[tuple[Span, ...], Meta(max_length=MAX_SPANS)] = ()
    partitions: Annotated[tuple[Partition, ...], Meta(max_length=MAX_SEQUENCES)] = ()
    salt: Salt = ""
    level: ReadLevel = OPEN
    policy: PolicyName = "none"
    background: bool = False
    examined: bool = False

    @property
    def public(self) -> int:
        """How many tokens are public, at the prompt's beginning."""
        return self.spans[0].tokens if self.spans and self.spans[0].label == "public" else 0

    @property
    def answered(self) -> int:
        """How many tokens are an answer's, at the prompt's end."""
        return self.spans[-1].tokens if self.spans and self.spans[-1].label == "answer" else 0

    @property
    def partition(self) -> Partition | None:
        """The first partition: the only one of a request with one sequence. All are on one link."""
        return self.partitions[0] if self.partitions else None


class Cancel(OfRequest, frozen=True, tag="cancel"):
    """Frontend → service: nobody waits for this request any more. Unknown ids are ignored: it may just have ended."""


class AskStats(Struct, frozen=True, tag="ask_stats", forbid_unknown_fields=True):
    """Frontend → service: answer with Stats."""


class Also(Struct, frozen=True, array_like=True):
    """One more answer to the same prompt: a request of its own that differs in its seed alone."""

    request_id: RequestId
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)]


MAX_ALSO = 127
"""So many more answers there may be to one prompt."""


class TokenLogprob(Struct, frozen=True, array_like=True):
    """One token's log-probability and its best alternatives (token, logprob), best first."""

    logprob: float
    top: tuple[tuple[TokenId, float], ...] = ()


class Ready(Struct, frozen=True, tag="ready", forbid_unknown_fields=True):
    """Service → frontend, once: the model is loaded."""

    version: int
    vocabulary: int
    max_context: int
    kv_blocks: int
    block_tokens: int
    kernels: str


class Accepted(OfRequest, frozen=True, tag="accepted"):
    """Service → frontend: the request is queued. `prompt_tokens` where the frontend did not read the prompt itself;
    with so many `sequences` its answer will come."""

    prompt_tokens: int = 0
    sequences: Annotated[int, Meta(ge=1, le=MAX_SEQUENCES)] = 1


class Progress(Struct, frozen=True, forbid_unknown_fields=True):
    """How far a slow answer is, for who waits for it: counts and a pace, nothing of what is computed.

    `token` is the answer's token under way, from 1; `layer` of `layers` are done for it. `seconds_per_token` is what
    was measured so far, at the prompt's length; None before anything was.
    """

    token: Annotated[int, Meta(ge=1)]
    layer: Annotated[int, Meta(ge=0, le=65536)]
    layers: Annotated[int, Meta(ge=1, le=65536)]
    seconds_per_token: Annotated[float, Meta(ge=0, le=1e9)] | None = None


class Tokens(OfRequest, frozen=True, tag="tokens"):
    """Service → frontend: new tokens of one request, in order. `finish` is set on the last message, which may be empty.

    A stop token is part of `tokens` (the frontend hides it). `prompt_logprobs` has one entry for each prompt token
    after the first (which nothing predicts); those of a long prompt come in pieces, the last of them with the first
    token or the finish. `progress` comes at slow levels.
    `sequence` says which of the request's sequences they belong to, where it has several. Those end together: the
    finish comes once, with the last tokens of the last of them, and says of none by itself how it ended.
    `cached` is how many of the prompt's tokens were found computed, `shared` how many of these are in blocks that
    everybody finds; they come once, with the first tokens.
    """

    tokens: tuple[TokenId, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    finish: FinishReason | None = None
    progress: Progress | None = None
    sequence: SequenceNumber = 0
    cached: Annotated[int, Meta(ge=0, le=1_048_576)] = 0
    shared: Annotated[int, Meta(ge=0, le=1_048_576)] = 0


class Failed(Struct, frozen=True, tag="failed", forbid_unknown_fields=True):
    """Service → frontend: the request ended in an error. `code` is a CloisterError code; no user content in it.

    `param` names the field of the request that is wrong, where one is.
    """

    request_id: RequestId
    code: Name
    message: Annotated[str, Meta(max_length=4096)]
    retry_after: int = 0
    param: Annotated[str, Meta(pattern="^[a-z_]{1,64}$")] | None = None


class Reuse(Struct, frozen=True, forbid_unknown_fields=True):
    """Of requests under one policy: how many found something computed, how many did not, and how many tokens."""

    hits: int = 0
    misses: int = 0
    tokens: int = 0


class Stats(Struct, frozen=True, tag="stats", forbid_unknown_fields=True):
    """Service → frontend: totals over all tenants, for operators alone.

    `reuse` is by policy; `demotions`, `evictions`, `offloads` and `recalls` are as in prefix.base.Counts.
    The controller adds what vaults counted, and says with `up` whether there is a service at all, with `levels` at
    which levels a request would be served now. `seconds` is the time spent so far in each phase of the service's
    layers (compute.base.PHASES) and in its steps as a whole.
    `vault_ready_ms` of the last vault: from the order to fork it until it was sealed. `vault_wait_ms` of the last one:
    from its session's beginning until it was sealed, 0 where a spare one was waiting.
    """

    running: int = 0
    waiting: int = 0
    blocks_total: int = 0
    blocks_free: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    vaults: int = 0
    up: bool = True
    seconds: dict[Phase, float] = field(default_factory=dict)
    reuse: dict[PolicyName, Reuse] = field(default_factory=dict)
    demotions: int = 0
    evictions: int = 0
    offloads: int = 0
    recalls: int = 0
    levels: tuple[LevelName, ...] = ()
    vault_ready_ms: float | None = None
    vault_wait_ms: float | None = None
