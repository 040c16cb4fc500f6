"""What the controller and a vault say to each other. A vault never speaks to anyone else but through its link."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from cloister.messages.generation import (
    Cancel,
    Failed,
    FinishReason,
    RequestId,
    SamplingParams,
    TokenId,
    TokenLogprob,
    Tokens,
    _Discreet,
)
from cloister.messages.prompts import LockedPrompt, PromptBytes

VaultLevel = Literal["partitioned", "isolated", "mpc"]
"""Levels at which a prompt is confided to a process of its own. At `mpc` that is the clerk (messages.clerk)."""


class Confide(_Discreet, Struct, frozen=True, tag="confide", forbid_unknown_fields=True):
    """Controller → vault: serve this prompt. At `partitioned` up to the first token, at `isolated` to the end."""

    request_id: RequestId
    level: VaultLevel
    prompt: PromptBytes | LockedPrompt
    params: SamplingParams


class Release(Struct, frozen=True, tag="release", forbid_unknown_fields=True):
    """Controller → vault: the service asks nothing more for this request; its slot is free, its KV may be reused."""

    request_id: RequestId


class TakeFloor(Struct, frozen=True, tag="take_floor", forbid_unknown_fields=True):
    """Controller → vault: so many cores are yours for the piece of work you asked them for."""

    cores: Annotated[int, Meta(ge=1, le=4096)]


class VaultReady(Struct, frozen=True, tag="vault_ready", forbid_unknown_fields=True):
    """Vault → controller, once: sealed, and waiting for a prompt."""

    version: int


class Understood(_Discreet, Struct, frozen=True, tag="understood", forbid_unknown_fields=True):
    """Vault → controller: the prompt was read and is in order. Its length is the user's to know, not the service's."""

    request_id: RequestId
    prompt_tokens: Annotated[int, Meta(ge=1)]


class WantFloor(Struct, frozen=True, tag="want_floor", forbid_unknown_fields=True):
    """Vault → controller: I have work for some cores, about as much as prefilling so many tokens."""

    tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)]


class FloorDone(Struct, frozen=True, tag="floor_done", forbid_unknown_fields=True):
    """Vault → controller: that piece of work is done."""


class First(_Discreet, Struct, frozen=True, tag="first", forbid_unknown_fields=True):
    """Vault → controller: the prompt is prefilled and this is the answer's first token (Petridish §4, step 2).

    `public` are the tokens of the leading public span, whose keys and values the service holds itself; empty where
    nothing is public. `slot` names the private span on the link. `origin` and `turn` say where the answer stands: see
    compute.layout.Layout. `max_tokens` is what is left to generate in all, the first token included.
    """

    request_id: RequestId
    token: TokenId
    slot: Annotated[int, Meta(ge=0, le=1023)]
    origin: Annotated[int, Meta(ge=0)]
    turn: Annotated[int, Meta(ge=0)]
    max_tokens: Annotated[int, Meta(ge=1)]
    public: tuple[TokenId, ...] = ()
    logprob: TokenLogprob | None = None
    finish: FinishReason | None = None


class LinkBroken(Struct, frozen=True, tag="link_broken", forbid_unknown_fields=True):
    """Vault → controller: the service sent what it must not, so this vault answers nobody any more."""

    code: Annotated[str, Meta(max_length=64)]


ToVault = Confide | Release | Cancel | TakeFloor
FromVault = VaultReady | Understood | WantFloor | FloorDone | First | Tokens | Failed | LinkBroken
