"""What the controller and its door say to each other while the server waits for the key of its sealed weights."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from cloister.messages.front import AskEvidence, Evidence, Listening
from cloister.messages.generation import Failed, RequestId, _Discreet
from cloister.messages.lifecycle import StartFailed

MAX_MESSAGE_BYTES = 4096


class OpenDoor(Struct, frozen=True, tag="open_door", forbid_unknown_fields=True):
    """Controller → door, first: the gateway's settings as their own JSON, for it listens in the gateway's place."""

    version: int
    settings: Annotated[bytes, Meta(max_length=65536)]


class OfferKey(_Discreet, Struct, frozen=True, tag="offer_key", forbid_unknown_fields=True):
    """Door → controller: somebody releases a key, sealed to the controller. KeyTaken or Failed comes of it."""

    request_id: RequestId
    message: Annotated[bytes, Meta(max_length=MAX_MESSAGE_BYTES)]


class KeyTaken(_Discreet, Struct, frozen=True, tag="key_taken", forbid_unknown_fields=True):
    """Controller → door: it was the right one; the sealed answer says so to who released it."""

    request_id: RequestId
    answer: Annotated[bytes, Meta(max_length=MAX_MESSAGE_BYTES)]


FromDoor = Listening | StartFailed | AskEvidence | OfferKey
ToDoor = OpenDoor | Evidence | KeyTaken | Failed
