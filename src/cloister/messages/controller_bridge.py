"""Between the controller and its server bridge, which carries a link to a vault on another machine."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from cloister.messages.between_bridges import MAX_DOCUMENT_BYTES, Credentials, VaultRequest
from cloister.messages.types import Digest, Message

Address = Annotated[str, Meta(min_length=1, max_length=1024)]


class Connect(Message, frozen=True):
    """Controller → server bridge, with the vault's two descriptors of a link. Afterwards the bridge carries the
    messages between vault and controller through this socket, unread."""

    address: Address
    credentials: Credentials
    request: VaultRequest
    allow_degraded: bool = False


class AskVaultHost(Message, frozen=True):
    """Controller → server bridge: ask for evidence over this nonce, and for no vault. The bridge replies with
    VaultHostShown or StartFailed, and ends."""

    address: Address
    credentials: Credentials
    nonce: Digest


class VaultHostShown(Message, frozen=True):
    """Server bridge → controller: the document, and the SHA-256 of the certificate at the other end of the TLS that it
    came through. The bridge checked neither."""

    certificate: Digest
    document: Annotated[bytes, Meta(max_length=MAX_DOCUMENT_BYTES)]


ToServerBridge = Connect | AskVaultHost
