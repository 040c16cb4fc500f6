"""Between the controller and the gateway. The gateway knows the bytes of a sealed request, and no key to them."""

from typing import Annotated

from msgspec import Meta

from cloister.messages.controller_frontend import Ask, BytesTaken, CancelSealed, FromFrontend, SealedPart, ToFrontend
from cloister.messages.types import Digest, Message, RequestMessage

MAX_SEALED_BYTES = 15 * 1024 * 1024


class Listening(Message, frozen=True):
    """Gateway → controller, once: where users reach it."""

    url: Annotated[str, Meta(max_length=1024)]


class Sealed(RequestMessage, frozen=True):
    """Gateway → controller: a request sealed to the channel key. The reply is SealedPart or Failed."""

    envelope: Annotated[bytes, Meta(max_length=MAX_SEALED_BYTES)]


class AskEvidence(RequestMessage, frozen=True):
    """Gateway → controller: evidence over this nonce, for a client that saw a log of `since` entries last."""

    nonce: Digest
    since: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0


class Evidence(RequestMessage, frozen=True):
    """Controller → gateway: the document, as JSON."""

    document: Annotated[bytes, Meta(max_length=1 << 20)]


FromGateway = FromFrontend | Listening | Ask | Sealed | BytesTaken | CancelSealed | AskEvidence
ToGateway = ToFrontend | SealedPart | Evidence
