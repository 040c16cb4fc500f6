"""Between the controller and key waiting, which listens in the gateway's place until the weights' key comes."""

from typing import Annotated

from msgspec import Meta

from cloister.messages.controller_gateway import AskEvidence, Evidence, Listening, TlsCertificate
from cloister.messages.generation import Failed
from cloister.messages.lifecycle import StartFailed
from cloister.messages.types import Message, RequestMessage, Settings

MAX_MESSAGE_BYTES = 4096


class StartKeyWaiting(Message, frozen=True):
    """Controller → key waiting, first: the gateway's settings."""

    settings: Settings
    allow_degraded: bool = False
    certificate: TlsCertificate | None = None


class OfferKey(RequestMessage, frozen=True):
    """Key waiting → controller: a provider's key, sealed to the controller. The reply is KeyTaken or Failed."""

    message: Annotated[bytes, Meta(max_length=MAX_MESSAGE_BYTES)]


class KeyTaken(RequestMessage, frozen=True):
    """Controller → key waiting: the key was right; the sealed answer tells its provider."""

    answer: Annotated[bytes, Meta(max_length=MAX_MESSAGE_BYTES)]


FromKeyWaiting = Listening | StartFailed | AskEvidence | OfferKey
ToKeyWaiting = StartKeyWaiting | Evidence | KeyTaken | Failed
