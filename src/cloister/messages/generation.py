"""Messages about answers that are the same on every wire: service or vault → controller → frontend. Tokens only."""

from typing import Annotated

from msgspec import Meta, Struct, field

from cloister.errors import CountedName
from cloister.levels import LevelName, PolicyName
from cloister.messages.types import (
    MAX_SEQUENCES,
    MAX_WIDTH,
    FinishReason,
    Message,
    Name,
    Phase,
    RequestId,
    RequestMessage,
    SequenceNumber,
    TokenId,
    TokenLogprob,
    Vector,
)


class Cancel(RequestMessage, frozen=True):
    """Frontend → controller → service or vault. Unknown numbers are ignored: the request may just have ended."""


class AskStats(Message, frozen=True):
    """Frontend → controller → service: answer with Stats."""


class Ready(Message, frozen=True):
    """Service → controller, once: the model is loaded. `width`: of an embedding; 0: it makes none."""

    vocabulary: int
    max_context: int
    kv_blocks: int
    block_tokens: int
    kernels: str
    width: Annotated[int, Meta(ge=0, le=MAX_WIDTH)] = 0
    asks_vaults: bool = True
    lacks: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()  # layers of the sandbox, of another engine's process


class Accepted(RequestMessage, frozen=True):
    """The request is queued. `prompt_tokens` is set where the frontend did not read the prompt."""

    prompt_tokens: int = 0
    sequences: Annotated[int, Meta(ge=1, le=MAX_SEQUENCES)] = 1


class Progress(Struct, frozen=True, forbid_unknown_fields=True):
    """How far a slow answer is: the token under way, from 1, its layers done, and the measured pace."""

    token: Annotated[int, Meta(ge=1)]
    layer: Annotated[int, Meta(ge=0, le=65536)]
    layers: Annotated[int, Meta(ge=1, le=65536)]
    seconds_per_token: Annotated[float, Meta(ge=0, le=1e9)] | None = None


class Tokens(RequestMessage, frozen=True):
    """`prompt_logprobs` come in pieces; `finish` once, with the last tokens; `cached` and `shared` once, at first.
    `vector`: of an embedding, with `finish`."""

    tokens: tuple[TokenId, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    finish: FinishReason | None = None
    progress: Progress | None = None
    sequence: SequenceNumber = 0
    cached: Annotated[int, Meta(ge=0, le=1_048_576)] = 0
    shared: Annotated[int, Meta(ge=0, le=1_048_576)] = 0
    vector: Vector = b""


Rest = tuple[Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=0)]]


class Failed(Message, frozen=True):
    """`code` is a CloisterError's; the message has no user content; `param`: the field that is wrong; `quota`: of
    errors.QuotaExceeded."""

    request_id: RequestId
    code: Name
    message: Annotated[str, Meta(max_length=4096)]
    retry_after: int = 0
    param: Annotated[str, Meta(pattern="^[a-z_]{1,64}$")] | None = None
    quota: dict[CountedName, Rest] = field(default_factory=dict)


class Reuse(Struct, frozen=True, forbid_unknown_fields=True):
    """Of requests under one policy: how many found something computed, how many did not, and how many tokens."""

    hits: int = 0
    misses: int = 0
    tokens: int = 0


class Stats(Message, frozen=True):
    """Totals over all tenants, for operators alone. `seconds` by phase (compute.base.PHASES) and of steps.
    `vault_ready_ms`: from order to seal; `vault_wait_ms`: from the session's beginning, 0 where a spare was waiting."""

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
    evictions: int = 0
    levels: tuple[LevelName, ...] = ()
    vault_ready_ms: float | None = None
    vault_wait_ms: float | None = None
