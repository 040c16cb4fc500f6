"""Between the controller and its server bridge, which carries a link to a vault on another machine."""

from typing import Annotated

from msgspec import Meta

from cloister.messages.between_bridges import MAX_DOCUMENT_BYTES, Credentials, VaultRequest
from cloister.messages.types import Digest, Message

Address = Annotated[str, Meta(min_length=1, max_length=1024)]


class Connect(Message, frozen=True):
    """Controller → server bridge, with a link's descriptors: then it carries the vault's messages, unread."""

    address: Address
    credentials: Credentials
    request: VaultRequest
    allow_degraded: bool = False


class AskVaultHost(Message, frozen=True):
    """Controller → server bridge: ask for evidence and no vault. It replies VaultHostShown or StartFailed, and ends."""

    address: Address
    credentials: Credentials
    nonce: Digest


class VaultHostShown(Message, frozen=True):
    """Server bridge → controller, unchecked: the document, and the SHA-256 of the TLS certificate."""

    certificate: Digest
    document: Annotated[bytes, Meta(max_length=MAX_DOCUMENT_BYTES)]


ToServerBridge = Connect | AskVaultHost
