"""What the controller and key waiting say to each other until the key of the sealed weights is here."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from cloister.messages.frontend import AskEvidence, Evidence, Listening
from cloister.messages.generation import Failed, RequestId, _Discreet
from cloister.messages.lifecycle import StartFailed

MAX_MESSAGE_BYTES = 4096


class StartKeyWaiting(Struct, frozen=True, tag="start_key_waiting", forbid_unknown_fields=True):
    """Controller → key waiting, first: the gateway's settings as JSON, for it listens in the gateway's place."""

    version: int
    settings: Annotated[bytes, Meta(max_length=65536)]


class OfferKey(_Discreet, Struct, frozen=True, tag="offer_key", forbid_unknown_fields=True):
    """KeyWaiting → controller: somebody releases a key, sealed to the controller. KeyTaken or Failed comes of it."""

    request_id: RequestId
    message: Annotated[bytes, Meta(max_length=MAX_MESSAGE_BYTES)]


class KeyTaken(_Discreet, Struct, frozen=True, tag="key_taken", forbid_unknown_fields=True):
    """Controller → key waiting: it was the right one; the sealed answer says so to who released it."""

    request_id: RequestId
    answer: Annotated[bytes, Meta(max_length=MAX_MESSAGE_BYTES)]


FromKeyWaiting = Listening | StartFailed | AskEvidence | OfferKey
ToKeyWaiting = StartKeyWaiting | Evidence | KeyTaken | Failed
