"""Between a vault host, its doorkeeper and the vault bridges that the doorkeeper forks."""

from typing import Annotated

from msgspec import Meta

from cloister.messages.between_bridges import MAX_DOCUMENT_BYTES, Credentials, VaultRequest
from cloister.messages.controller_vault import CoresDone, WantCores
from cloister.messages.types import Digest, Message


class Accept(Message, frozen=True):
    """Vault host → doorkeeper, with a listening socket: check peers. `request` is what a peer must ask for."""

    credentials: Credentials
    request: VaultRequest
    allow_degraded: bool = False


class Arrived(Message, frozen=True):
    """Doorkeeper → vault host, with a bridge's pidfd and one end of the socket to it: its peer has the server's key."""


class Admitted(Message, frozen=True):
    """Vault bridge → vault host: the peer's VaultRequest is right. Fork a vault."""


class UseVault(Message, frozen=True):
    """Vault host → vault bridge, with the service's two descriptors of a link and the control socket of a new vault."""


class WantEvidence(Message, frozen=True):
    """Vault bridge → vault host: the peer asks for this machine's evidence."""

    nonce: Digest


class HostEvidence(Message, frozen=True):
    """Vault host → vault bridge: the document, for the peer."""

    document: Annotated[bytes, Meta(max_length=MAX_DOCUMENT_BYTES)]


ToVaultBridge = UseVault | HostEvidence
FromVaultBridge = Admitted | WantEvidence | WantCores | CoresDone
