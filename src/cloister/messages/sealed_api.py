"""What the controller and the sealed API (the process that answers sealed requests) say to each other.

The sealed API gets the keys of the inner request and of the answer. It names prompts; it is never given one.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from cloister.messages.frontend import (
    MAX_SEALED_BYTES,
    AboutGenerating,
    Ask,
    AskGenerating,
    Leave,
    SealedPart,
    Serving,
    StartFrontend,
    Taken,
)
from cloister.messages.generation import Failed, RequestId, _Discreet
from cloister.messages.lifecycle import StartFailed
from cloister.messages.prompts import Enc, RequestKey, SealedPrompt


class Serve(_Discreet, Struct, frozen=True, tag="serve", forbid_unknown_fields=True):
    """Controller → sealed API: answer this sealed request, which has so many prompts. SealedPart or Failed follows."""

    request_id: RequestId
    enc: Enc
    request: Annotated[bytes, Meta(max_length=MAX_SEALED_BYTES)]
    prompts: Annotated[int, Meta(ge=0, le=128)]
    request_key: RequestKey
    response_key: RequestKey


class AskSealed(Struct, frozen=True, tag="ask_sealed", forbid_unknown_fields=True):
    """Sealed API → controller: as `ask` says, with a sealed prompt in place of the empty one. The gateway cannot say
    so: it would get the answer to a prompt that is not its own to ask about."""

    ask: Ask
    prompt: SealedPrompt


class Settled(Struct, frozen=True, tag="settled", forbid_unknown_fields=True):
    """Sealed API → controller, once: sealed off, and ready for requests."""


class Mishap(Struct, frozen=True, tag="mishap", forbid_unknown_fields=True):
    """Sealed API → controller: a line for the log. The type and place of an error, never what it says."""

    line: Annotated[str, Meta(pattern="^[ -~]{1,200}$")]


ToSealedApi = StartFrontend | Serving | AboutGenerating | Serve | Taken | Leave
FromSealedApi = Settled | StartFailed | Mishap | AskGenerating | AskSealed | SealedPart | Failed
