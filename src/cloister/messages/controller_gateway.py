"""Between the controller and the gateway. The gateway knows the bytes of a sealed request, and no key to them."""

from typing import Annotated

from msgspec import Meta, Struct

from cloister.messages.controller_frontend import Ask, BytesTaken, CancelSealed, FromFrontend, SealedPart, ToFrontend
from cloister.messages.types import Digest, Message, RequestMessage, SilentRepr

MAX_SEALED_BYTES = 15 * 1024 * 1024
MAX_CHAIN_BYTES, MAX_KEY_BYTES = 1 << 16, 1 << 14


class TlsCertificate(SilentRepr, Struct, frozen=True, forbid_unknown_fields=True):
    """In PEM: the node's certificate and those that signed it; its private key."""

    chain: Annotated[bytes, Meta(min_length=1, max_length=MAX_CHAIN_BYTES)]
    key: Annotated[bytes, Meta(min_length=1, max_length=MAX_KEY_BYTES)]


class ShowCertificate(Message, frozen=True):
    """Controller → gateway, before Serving where TLS ends here, and when the files were read again."""

    certificate: TlsCertificate


class Listening(Message, frozen=True):
    """Gateway → controller, once: where users reach it."""

    url: Annotated[str, Meta(max_length=1024)]


class Sealed(RequestMessage, frozen=True):
    """Gateway → controller: a request sealed to the channel key. The reply is SealedPart or Failed."""

    envelope: Annotated[bytes, Meta(max_length=MAX_SEALED_BYTES)]


class OpenExchange(RequestMessage, frozen=True):
    """Gateway → controller: the header of an oblivious request (RFC 9458). The reply is ExchangeOpened or Failed."""

    header: Annotated[bytes, Meta(min_length=39, max_length=39)]
    chunked: bool


class ExchangeOpened(RequestMessage, frozen=True):
    """Controller → gateway: the keys of this one exchange. What is in it mostly is a sealed request."""

    request_key: Annotated[bytes, Meta(max_length=32)]
    base_nonce: Annotated[bytes, Meta(max_length=12)]
    response_secret: Annotated[bytes, Meta(max_length=32)]


class AskKeyConfigurations(RequestMessage, frozen=True):
    """Gateway → controller: which key does an oblivious request need now?"""


class KeyConfigurations(RequestMessage, frozen=True):
    """Controller → gateway: a document of type application/ohttp-keys."""

    document: Annotated[bytes, Meta(max_length=1024)]


class AskEvidence(RequestMessage, frozen=True):
    """Gateway → controller: evidence over this nonce, for a client that saw a log of `since` entries last."""

    nonce: Digest
    since: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0


class Evidence(RequestMessage, frozen=True):
    """Controller → gateway: the document, as JSON."""

    document: Annotated[bytes, Meta(max_length=1 << 20)]


class BeginDrain(Message, frozen=True):
    """Controller → gateway: take no new request. The reply comes when all that run have ended."""


class Drained(Message, frozen=True):
    """Gateway → controller: nothing runs, and nothing begins."""


_Questions = AskEvidence | OpenExchange | AskKeyConfigurations
FromGateway = FromFrontend | Listening | Ask | Sealed | BytesTaken | CancelSealed | Drained | _Questions
ToGateway = ToFrontend | ShowCertificate | SealedPart | Evidence | ExchangeOpened | KeyConfigurations | BeginDrain
