"""A vault on another machine: controller → server bridge → vault bridge (doorkeeper) → vault host."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from cloister.messages.controller_gateway import AskEvidence, Evidence
from cloister.messages.controller_vault import CoresDone, WantCores
from cloister.messages.generation import Failed
from cloister.messages.types import Digest, Message, SilentRepr

Role = Literal["server", "vault_host"]  # the server connects, the vault host listens
Count = Annotated[int, Meta(ge=1, le=2**20)]
MAX_PART_BYTES = 1 << 15
MAX_DOCUMENT_BYTES = 1 << 19
Encoded = Annotated[bytes, Meta(min_length=1, max_length=4096)]


class Credentials(SilentRepr, Struct, frozen=True, forbid_unknown_fields=True):
    """A role's key and certificate (PEM), the other's (DER), the SHA-256 of the vault host's checked one."""

    role: Role
    own: Encoded
    peer: Encoded
    pinned: Annotated[bytes, Meta(max_length=32)] = b""


class VaultRequest(Message, frozen=True):
    """Server bridge → vault bridge, first: a vault for this model. Both sides must agree on all fields."""

    version: int
    model: Digest
    heads: Count
    dim: Count
    layers: Count
    capacity: Count


class VaultGranted(Message, frozen=True):
    """Vault bridge → server bridge: a vault was forked for you."""


class VaultRefused(Message, frozen=True):
    """Vault bridge → server bridge, before it hangs up: why there is no vault."""

    message: Annotated[str, Meta(max_length=1024)]


class EvidenceRequest(Message, frozen=True):
    """Server bridge → vault bridge, instead of VaultRequest: send your machine's evidence."""

    nonce: Digest


class EvidencePart(Message, frozen=True):
    """Vault bridge → server bridge: a piece of the vault host's evidence, small enough for any link."""

    data: Annotated[bytes, Meta(max_length=MAX_PART_BYTES)]
    last: bool


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


ToVaultBridge = UseVault | Evidence | Failed
FromVaultBridge = Admitted | AskEvidence | WantCores | CoresDone
