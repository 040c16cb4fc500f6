"""Between the controller and a vault. At the level `mpc` the MPC client takes a vault's place and asks for no cores."""

from typing import Annotated

from msgspec import Meta, Struct

from cloister.levels import PrivateLevel
from cloister.messages.generation import Cancel, Failed, Tokens
from cloister.messages.lifecycle import Ping, Pong, StartFailed
from cloister.messages.prompts import LockedPrompt, ObfuscationParams, PromptBytes
from cloister.messages.types import (
    MAX_SEQUENCES,
    ExtraAnswers,
    FinishReason,
    Message,
    RequestMessage,
    SamplingParams,
    Seed,
    SequenceNumber,
    SilentRepr,
    TokenId,
    TokenLogprob,
)

MAX_CLAIMED = 64  # tokens of one sequence in one message
Answer = Annotated[tuple[TokenId, ...], Meta(max_length=1_048_576)]


class AssignPrompt(RequestMessage, frozen=True):
    """Controller → vault: serve this prompt, as far as its level has a vault do it. `also`: more answers to it."""

    level: PrivateLevel
    prompt: PromptBytes | LockedPrompt
    params: SamplingParams
    also: ExtraAnswers = ()
    obfuscation: ObfuscationParams | None = None


class Release(RequestMessage, frozen=True):
    """Controller → vault: the service will not ask for this request again; its slot is free, its KV may be reused."""


class Answered(RequestMessage, frozen=True):
    """Controller → vault, at `obfuscated` in a kept session: each sequence's answer, for its variant's next turn."""

    streams: Annotated[tuple[Answer, ...], Meta(min_length=2, max_length=MAX_SEQUENCES)]


class Claimed(RequestMessage, frozen=True):
    """Controller → vault: compute again these tokens, which the service says come next, or the end (none)."""

    tokens: Annotated[tuple[TokenId, ...], Meta(max_length=MAX_CLAIMED)]
    sequence: SequenceNumber = 0


class FinishAlone(RequestMessage, frozen=True):
    """Controller → vault: go on from what is verified, without the service. Vault → controller: it must, since the
    record of what was asked is full."""


class LeaseCores(Message, frozen=True):
    """Controller → vault: the vault may use this number of cores for the work it asked for, up to `tokens` tokens."""

    cores: Annotated[int, Meta(ge=1, le=4096)]
    tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 2**31 - 1


class VaultReady(Message, frozen=True):
    """Vault → controller, once: sealed, and waiting for a prompt."""

    version: int


class PromptAccepted(RequestMessage, frozen=True):
    """Vault → controller. The length (of the longest sequence) is the user's to know, not the service's."""

    prompt_tokens: Annotated[int, Meta(ge=1)]
    sequences: Annotated[int, Meta(ge=1, le=MAX_SEQUENCES)] = 1


class WantCores(Message, frozen=True):
    """Vault → controller: work of this many tokens; with `reading`, a long prompt to read in one piece."""

    tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    reading: bool = False


class CoresDone(Message, frozen=True):
    """Vault → controller: that piece of work is done."""


class FirstToken(SilentRepr, Struct, frozen=True, forbid_unknown_fields=True):
    """A sequence's first token, and its slot on the link. `origin`, `rotation`: see compute.layout.Layout."""

    token: TokenId
    slot: Annotated[int, Meta(ge=0, le=1023)]
    origin: Annotated[int, Meta(ge=0)] = 0
    rotation: Annotated[int, Meta(ge=0)] = 0
    logprob: TokenLogprob | None = None
    finish: FinishReason | None = None


class Prefilled(RequestMessage, frozen=True):
    """Vault → controller (Petridish §4, step 2). `public`: the leading public span; `max_tokens`: left in all; `seed`:
    the request's own, or the one that the vault drew."""

    sequences: Annotated[tuple[FirstToken, ...], Meta(min_length=1, max_length=MAX_SEQUENCES)]
    max_tokens: Annotated[int, Meta(ge=1)]
    public: tuple[TokenId, ...] = ()
    seed: Seed = 0


class Verified(RequestMessage, frozen=True):
    """Vault → controller: what honestly comes next, up to the first difference or alone. `finish`: once, at the end.
    `asked_otherwise`: the service queried the vault for something else."""

    tokens: Annotated[tuple[TokenId, ...], Meta(max_length=MAX_CLAIMED)]
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish: FinishReason | None = None
    sequence: SequenceNumber = 0
    asked_otherwise: bool = False


class LinkBroken(Message, frozen=True):
    """Vault → controller: the service sent a wrong question on the link, so this vault answers no more questions."""

    code: Annotated[str, Meta(max_length=64)]


ToVault = AssignPrompt | Release | Cancel | Answered | Claimed | FinishAlone | LeaseCores | Ping
AboutPrompts = PromptAccepted | Prefilled | Verified | FinishAlone | Tokens | Failed
# A bridge that gets no vault sends StartFailed; a vault that was sealed must not.
FromVault = VaultReady | StartFailed | WantCores | CoresDone | AboutPrompts | LinkBroken | Pong
