"""What the controller and whoever holds a prompt say to each other.

A vault speaks to the controller and through its link, to nobody else. The MPC client gets prompts in the same messages.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from cloister.levels import PrivateLevel
from cloister.messages.generation import (
    MAX_ALSO,
    MAX_SEQUENCES,
    Also,
    Cancel,
    Failed,
    FinishReason,
    OfRequest,
    SamplingParams,
    SequenceNumber,
    TokenId,
    TokenLogprob,
    Tokens,
)
from cloister.messages.lifecycle import Ping, Pong, StartFailed
from cloister.messages.obfuscation import ObfuscationParams
from cloister.messages.prompts import LockedPrompt, PromptBytes, _Silent

Answer = Annotated[tuple[TokenId, ...], Meta(max_length=1_048_576)]


class AssignPrompt(OfRequest, frozen=True, tag="assign_prompt"):
    """Controller → vault: serve this prompt, as far as its level has a vault do it (levels.Decodes), and `also` so many
    times more."""

    level: PrivateLevel
    prompt: PromptBytes | LockedPrompt
    params: SamplingParams
    also: Annotated[tuple[Also, ...], Meta(max_length=MAX_ALSO)] = ()
    obfuscation: ObfuscationParams | None = None

    @property
    def request_ids(self) -> tuple[int, ...]:
        return self.request_id, *(each.request_id for each in self.also)

    @property
    def prompt_bytes(self) -> int:
        """Unread, and where it came sealed with its seal."""
        return len(self.prompt.data if isinstance(self.prompt, LockedPrompt) else self.prompt)


class Release(OfRequest, frozen=True, tag="release"):
    """Controller → vault: the service asks nothing more for this request; its slot is free, its KV may be reused."""


class Answered(OfRequest, frozen=True, tag="answered"):
    """Controller → vault, at `obfuscated` in a session that is kept: what each sequence said, for the next turn. In a
    conversation every variant goes on with its own answer, and only the vault knows which variant a sequence is."""

    streams: Annotated[tuple[Answer, ...], Meta(min_length=2, max_length=MAX_SEQUENCES)]


class LeaseCores(Struct, frozen=True, tag="lease_cores", forbid_unknown_fields=True):
    """Controller → vault: so many cores are yours for the piece of work you asked them for, or for the first so many
    tokens of it."""

    cores: Annotated[int, Meta(ge=1, le=4096)]
    tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 2**31 - 1


class VaultReady(Struct, frozen=True, tag="vault_ready", forbid_unknown_fields=True):
    """Vault → controller, once: sealed, and waiting for a prompt."""

    version: int


class PromptAccepted(OfRequest, frozen=True, tag="prompt_accepted"):
    """Vault → controller: the prompt was read and is in order. Its length is the user's to know, not the service's.

    At `obfuscated` so many `sequences` will be prefilled, and the length is that of the longest.
    """

    prompt_tokens: Annotated[int, Meta(ge=1)]
    sequences: Annotated[int, Meta(ge=1, le=MAX_SEQUENCES)] = 1


class WantCores(Struct, frozen=True, tag="want_cores", forbid_unknown_fields=True):
    """Vault → controller: I have work for some cores: so many tokens, or a long prompt to read, which takes as long as
    so many and is done in one piece."""

    tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    reading: bool = False


class CoresDone(Struct, frozen=True, tag="cores_done", forbid_unknown_fields=True):
    """Vault → controller: that piece of work is done."""


class FirstToken(_Silent, Struct, frozen=True, forbid_unknown_fields=True):
    """Where one sequence's answer begins: its first token, and the slot that names its private span on the link.

    `origin` and `rotation` say where the answer stands: see compute.layout.Layout.
    """

    token: TokenId
    slot: Annotated[int, Meta(ge=0, le=1023)]
    origin: Annotated[int, Meta(ge=0)] = 0
    rotation: Annotated[int, Meta(ge=0)] = 0
    logprob: TokenLogprob | None = None
    finish: FinishReason | None = None


class Prefilled(OfRequest, frozen=True, tag="prefilled"):
    """Vault → controller: the prompt is prefilled (Petridish §4, step 2), as one sequence or as several.

    `public` are the tokens of the leading public span, whose keys and values the service holds itself; empty where
    nothing is public. `max_tokens` is what is left to generate in all, the first token included.
    """

    sequences: Annotated[tuple[FirstToken, ...], Meta(min_length=1, max_length=MAX_SEQUENCES)]
    max_tokens: Annotated[int, Meta(ge=1)]
    public: tuple[TokenId, ...] = ()


class Verify(OfRequest, frozen=True, tag="verify"):
    """Controller → vault: are these the next tokens of that sequence's answer? They are held back until it says so."""

    sequence: SequenceNumber
    tokens: Annotated[tuple[TokenId, ...], Meta(min_length=1, max_length=65536)]


class Verified(OfRequest, frozen=True, tag="verified"):
    """Vault → controller: so many of the tokens to be verified are the answer's own; fewer than all is a lie."""

    sequence: SequenceNumber
    tokens: Annotated[int, Meta(ge=0, le=65536)]


class LinkBroken(Struct, frozen=True, tag="link_broken", forbid_unknown_fields=True):
    """Vault → controller: the service sent what it must not, so this vault answers nobody any more."""

    code: Annotated[str, Meta(max_length=64)]


ToVault = AssignPrompt | Release | Cancel | Answered | LeaseCores | Verify | Ping
AboutPrompts = PromptAccepted | Prefilled | Verified | Tokens | Failed
FromVault = VaultReady | StartFailed | WantCores | CoresDone | AboutPrompts | LinkBroken | Pong
"""StartFailed is for a bridge that gets no vault; a vault that was sealed must not say it."""
