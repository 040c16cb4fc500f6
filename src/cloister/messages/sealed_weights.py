"""What the controller says of sealed weights to key waiting, until their key is here, and to the unsealer."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from cloister.messages.frontend import AskEvidence, Evidence, Listening
from cloister.messages.generation import Failed, OfRequest
from cloister.messages.lifecycle import Path, StartFailed
from cloister.messages.prompts import _Silent

MAX_MESSAGE_BYTES = 4096


class StartKeyWaiting(Struct, frozen=True, tag="start_key_waiting", forbid_unknown_fields=True):
    """Controller → key waiting, first: the gateway's settings as JSON, for it listens in the gateway's place."""

    version: int
    settings: Annotated[bytes, Meta(max_length=65536)]
    allow_degraded: bool = False


class OfferKey(OfRequest, frozen=True, tag="offer_key"):
    """Key waiting → controller: somebody releases a key, sealed to the controller. KeyTaken or Failed comes of it."""

    message: Annotated[bytes, Meta(max_length=MAX_MESSAGE_BYTES)]


class KeyTaken(OfRequest, frozen=True, tag="key_taken"):
    """Controller → key waiting: it was the right one; the sealed answer says so to who released it."""

    answer: Annotated[bytes, Meta(max_length=MAX_MESSAGE_BYTES)]


FromKeyWaiting = Listening | StartFailed | AskEvidence | OfferKey
ToKeyWaiting = StartKeyWaiting | Evidence | KeyTaken | Failed


class Unseal(_Silent, Struct, frozen=True, tag="unseal", forbid_unknown_fields=True):
    """Controller → unsealer, first: decrypt this file, which this provider must have signed, into memory."""

    version: int
    path: Path
    provider: Annotated[str, Meta(max_length=1024)]
    content_key: Annotated[bytes, Meta(min_length=32, max_length=32)]


class Unsealed(Struct, frozen=True, tag="unsealed", forbid_unknown_fields=True):
    """Unsealer → controller, with the descriptor of a folder that lies in memory alone: the model is whole in there."""


class Packed(Struct, frozen=True, tag="packed", forbid_unknown_fields=True):
    """Controller → unsealer: nobody needs the parameters' files any more."""


class Locked(Struct, frozen=True, tag="locked", forbid_unknown_fields=True):
    """Unsealer → controller, last: the parameters' files are gone, and nobody can write into the folder."""


FromUnsealer = StartFailed | Unsealed | Locked
ToUnsealer = Unseal | Packed
