"""Messages about answers that are the same on every wire they pass: service or vault → controller → frontend.

Tokens only: text, templates and stop strings stay in the frontend.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from cloister.levels import LevelName, PolicyName
from cloister.messages.types import (
    MAX_SEQUENCES,
    FinishReason,
    Message,
    Name,
    Phase,
    RequestId,
    RequestMessage,
    SequenceNumber,
    TokenId,
    TokenLogprob,
)


class Cancel(RequestMessage, frozen=True):
    """Frontend → controller → service or vault: the answer is not wanted. Unknown numbers are ignored: the request may
    just have ended."""


class AskStats(Message, frozen=True):
    """Frontend → controller → service: answer with Stats."""


class Ready(Message, frozen=True):
    """Service → controller, once: the model is loaded."""

    version: int
    vocabulary: int
    max_context: int
    kv_blocks: int
    block_tokens: int
    kernels: str


class Accepted(RequestMessage, frozen=True):
    """The request is queued. `prompt_tokens` is set where the frontend did not read the prompt; the answer has
    `sequences` sequences."""

    prompt_tokens: int = 0
    sequences: Annotated[int, Meta(ge=1, le=MAX_SEQUENCES)] = 1


class Progress(Struct, frozen=True, forbid_unknown_fields=True):
    """How far a slow answer is: counts and a pace, no value that was computed.

    `token` is the answer's token under way, from 1; `layer` of `layers` are done for it. `seconds_per_token` is what
    was measured so far, at the prompt's length; None before the first measurement.
    """

    token: Annotated[int, Meta(ge=1)]
    layer: Annotated[int, Meta(ge=0, le=65536)]
    layers: Annotated[int, Meta(ge=1, le=65536)]
    seconds_per_token: Annotated[float, Meta(ge=0, le=1e9)] | None = None


class Tokens(RequestMessage, frozen=True):
    """New tokens of one request, in order. `finish` is set on the last message, which may be empty.

    A stop token is part of `tokens` (the frontend hides it). `prompt_logprobs` has one entry for each prompt token
    after the first (which nothing predicts); those of a long prompt come in pieces, the last of them with the first
    token or the finish. `progress` comes at slow levels.
    `sequence` names the sequence that the tokens belong to, where the request has several. Those end together: the
    finish comes once, with the last tokens of the last of them, and does not say how each of them ended.
    `cached` is how many of the prompt's tokens were found computed, `shared` how many of these are in blocks that
    all tenants find; they come once, with the first tokens.
    """

    tokens: tuple[TokenId, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    finish: FinishReason | None = None
    progress: Progress | None = None
    sequence: SequenceNumber = 0
    cached: Annotated[int, Meta(ge=0, le=1_048_576)] = 0
    shared: Annotated[int, Meta(ge=0, le=1_048_576)] = 0


class Failed(Message, frozen=True):
    """The request ended in an error. `code` is a CloisterError code; the message has no user content.

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


class Stats(Message, frozen=True):
    """Service → controller → frontend: totals over all tenants, for operators alone.

    `reuse` is by policy; `demotions`, `evictions`, `offloads` and `recalls` are as in prefix.base.Counts.
    The controller adds what vaults counted, whether a service is `up`, and the `levels` at which a request would be
    served now. `seconds` is the time spent so far in each phase of the service's layers (compute.base.PHASES) and in
    its steps as a whole.
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
